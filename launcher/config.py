"""What a launcher is told at its start."""

from pathlib import Path
from typing import Literal

import msgspec

from launcher.core.task_plan import LogLimits


class LauncherConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one launcher; folders are absolute paths."""

    node: str
    state_dir: Path
    """Journal and run folders, of this launcher alone."""
    run_dir: Path
    """Runtime folder shared with the node's agent: the job socket lies there."""
    checkpoint_root: Path
    """Checkpoints of jobs that name no folder; the same on every node."""
    first_port: int = 20_000
    last_port: int = 29_999
    lease_ms: int = 30_000
    """Cut off from the bus for longer than this, it stops its tasks."""
    lease_grace_ms: int = 10_000
    """Longest grace then; the scheduler waits for lease and grace before it restarts a gang."""
    on_exit: Literal["leave", "stop"] = "leave"
    log_limits: LogLimits = LogLimits()
    kept_run_folders: int = 1_000
    """Folders of ended runs kept for their logs."""
    max_commands: int = 64
    """Commands in work at the same time."""

    @property
    def runs_dir(self) -> Path:
        return self.state_dir / "runs"
