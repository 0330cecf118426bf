"""Settings of a node agent; the command line fills them."""

from pathlib import Path

import msgspec

from node_agent.core.health import DEFAULT_RULES, HealthRules
from node_agent.core.inventory import Host

JOB_SOCKET_NAME = "job.sock"


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times are milliseconds."""

    host: Host
    run_dir: Path
    """Shared with the launcher of the node; the job socket lies here."""
    state_file: Path
    device_mask: str | None = None
    """``CUDA_VISIBLE_DEVICES`` of the agent; None: all GPUs. Not applied to declared GPUs."""
    cleared_faults: tuple[str, ...] = ()
    """GPUs whose flag the operator takes away at this start."""
    health_rules: HealthRules = DEFAULT_RULES
    heartbeat_ms: int = 2_000
    telemetry_ms: int = 2_000
    hung_after_ms: int = 30_000
    leave_ms: int = 3_000
    """Longest wait for the bus at the end."""

    @property
    def job_socket(self) -> Path:
        return self.run_dir / JOB_SOCKET_NAME
