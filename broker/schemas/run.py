"""What launchers, and the agent's job socket, report about runs."""

from enum import StrEnum

import msgspec

from broker.schemas.base import Input


class PrepareRefusal(StrEnum):
    """Why a launcher cannot take a run; a closed list."""

    GPU_BUSY = "GpuBusy"
    """Another run of this node still owns one of the GPUs."""
    NO_PORTS = "NoPorts"
    """No free port is left in the launcher's range."""
    NO_SPACE = "NoSpace"
    """The run's folder cannot be made."""
    NOT_PREPARED = "NotPrepared"
    """Told to start a run that it does not know."""


class StopReason(StrEnum):
    """Why a run is asked to stop; a closed list."""

    PREEMPT = "Preempt"
    """Its GPUs go to a job of higher priority, or its user holds it."""
    CANCEL = "Cancel"
    """Its user ended it."""
    TIME_LIMIT = "TimeLimit"
    """It ran as long as its `time_limit` allows."""
    PEER_FAILED = "PeerFailed"
    """Another task of the gang failed, or its node is gone."""
    PEER_FINISHED = "PeerFinished"
    """The task that decides (the chief) ended well."""
    ABORT = "Abort"
    """The gang could not be started whole."""
    UNKNOWN_RUN = "UnknownRun"
    """The scheduler does not know the run, or has given it up."""
    LEASE = "Lease"
    """The launcher was cut off from the bus for longer than its lease."""
    SHUTDOWN = "Shutdown"
    """The launcher ends and takes its tasks with it."""


class RunPrepared(Input, frozen=True, kw_only=True, tag="run.prepared"):
    """The node reserved devices, folders and ports. ``ports`` maps task name to its port."""

    node: str
    run_id: str
    ports: dict[str, int]


class RunPrepareRefused(Input, frozen=True, kw_only=True, tag="run.prepare_refused"):
    """The node cannot take its part of the run; nothing was started there."""

    node: str
    run_id: str
    reason: PrepareRefusal
    detail: str = ""
    owners: dict[str, str] = {}
    """For GPU_BUSY: GPU id -> run id, the launcher's own ledger, which is right."""


class RunStarted(Input, frozen=True, kw_only=True, tag="run.started"):
    """All tasks of the run on this node are up. ``pids`` maps task name to process id."""

    node: str
    run_id: str
    pids: dict[str, int]
    start_ms: int = 0
    """From the command's arrival until the processes were up."""


class TaskExit(msgspec.Struct, frozen=True, kw_only=True):
    """How one task ended: an exit code, or the signal that killed it."""

    task: str
    rank: int
    exit_code: int | None = None
    signal: int | None = None
    stopped_by_us: bool = False
    """It ended after we asked, or because another task had failed first."""


class RunExited(Input, frozen=True, kw_only=True, tag="run.exited"):
    """Nothing of the run is left on this node: its GPUs there are free.

    With ``tasks`` and without a `RunStarted` before it, the tasks were over that soon.

    ``lost`` means that the tasks ended unseen (machine restart, supervisor killed).
    ``leftover_pids`` are processes that could not be killed: their GPUs are quarantined.
    """

    node: str
    run_id: str
    tasks: tuple[TaskExit, ...] = ()
    asked: StopReason | None = None
    lost: bool = False
    leftover_pids: tuple[int, ...] = ()
    ask_to_exit_ms: int | None = None
    """From the request to stop until the last process was gone."""


class RunCheckpointed(Input, frozen=True, kw_only=True, tag="run.checkpointed"):
    """A save is complete on disk. ``asked`` if it answers a request to stop."""

    node: str
    run_id: str
    step: int
    path: str = ""
    save_ms: int = 0
    size_bytes: int = 0
    asked: bool = False


class RunResumed(Input, frozen=True, kw_only=True, tag="run.resumed"):
    """The run's first step is done. ``step`` is where it started from (0: from the beginning)."""

    node: str
    run_id: str
    step: int
    restore_ms: int = 0
    first_step_ms: int = 0
    """From the start of the process until its first step was done."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a launcher's inventory."""

    run_id: str
    phase: str
    """prepared, running, stopping."""


class InventoryReported(Input, frozen=True, kw_only=True, tag="run.inventory_reported"):
    """Every run a launcher has, in answer to a new leader or at its own start."""

    node: str
    boot_id: str
    runs: tuple[RunReport, ...] = ()


class LauncherLeft(Input, frozen=True, kw_only=True, tag="run.launcher_left"):
    """The launcher stops on purpose: start nothing on its node until it reports again."""

    node: str


class TensorsObserved(Input, frozen=True, kw_only=True, tag="run.tensors_observed"):
    """Sizes of the trainable tensors as the job's own callback lists them."""

    node: str
    run_id: str
    tensor_bytes: tuple[int, ...]
