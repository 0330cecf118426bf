"""What the scheduler tells launchers. Each carries the epoch of the leader that sent it."""

import msgspec

from broker.schemas.base import Output
from broker.schemas.job import JobSpec
from broker.schemas.run import StopReason


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a gang: where it runs and which GPUs it sees.

    ``role`` is worker, chief or ps. ``rank`` is unique in the gang: workers first (their index),
    then the chief, then parameter servers.
    """

    role: str
    index: int
    rank: int
    node: str
    gpu_ids: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


class Command(Output, frozen=True, kw_only=True):
    """Base of all commands; ``node`` is the launcher that shall act."""

    node: str
    run_id: str
    epoch: int = 0
    """Filled in by the leader's shell."""


class PrepareRun(Command, frozen=True, kw_only=True, tag="cmd.prepare_run"):
    """Reserve devices, ports and folders for these tasks.

    ``is_whole_gang``: nobody else takes part, so start as soon as it is reserved; no `StartRun`
    follows. Otherwise answer `RunPrepared` and start nothing.
    """

    job_id: int
    attempt: int
    user: str
    spec: JobSpec
    tasks: tuple[TaskPlacement, ...]
    is_whole_gang: bool = False


class StartRun(Command, frozen=True, kw_only=True, tag="cmd.start_run"):
    """Every node is prepared: start. ``cluster`` maps role to ``host:port`` in index order."""

    cluster: dict[str, tuple[str, ...]]


class PreemptRun(Command, frozen=True, kw_only=True, tag="cmd.preempt_run"):
    """Put the run aside so that it can resume: ask, wait for the save, at ``grace_ms`` kill."""

    grace_ms: int


class StopRun(Command, frozen=True, kw_only=True, tag="cmd.stop_run"):
    """End the run for good, or undo its preparation."""

    reason: StopReason
    grace_ms: int


AnyCommand = PrepareRun | StartRun | PreemptRun | StopRun
