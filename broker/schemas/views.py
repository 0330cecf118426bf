"""What people read: the present state of a job and of a node, one KV entry each."""

from enum import StrEnum

import msgspec

from broker.schemas.job import Problem
from broker.schemas.node import GpuFaultReason, GpuInfo


class JobState(StrEnum):
    """The state of a job as shown to people. Terminal states never change."""

    QUEUED = "QUEUED"
    HELD = "HELD"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    UNKNOWN = "UNKNOWN"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    REJECTED = "REJECTED"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset(
    (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT, JobState.REJECTED)
)


class RunOutcome(StrEnum):
    """How one attempt ended; a closed list."""

    SUCCEEDED = "SUCCEEDED"
    PREEMPTED = "PREEMPTED"
    """Put aside; the job waits and goes on from its newest save."""
    FAILED = "FAILED"
    """By the job's own fault."""
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    """The job's `time_limit` was used up."""
    LOST = "LOST"
    """A machine's fault: node lost, GPU lost, supervisor killed."""
    ABORTED = "ABORTED"
    """Never came up whole."""


class WaitReason(StrEnum):
    """Why a job does not run now; a closed list."""

    RESOURCES = "Resources"
    """Not enough GPUs free after the jobs ahead of it."""
    FRAGMENTED = "Fragmented"
    """Enough GPUs, but no set of nodes takes the gang as it must be placed."""
    WAITING_FOR_PREEMPTION = "WaitingForPreemption"
    """Its GPUs are being freed by jobs of lower priority."""
    RESERVED = "Reserved"
    """GPUs are held for it and not all free yet."""
    NO_NODE_EVER_FITS = "NoNodeEverFits"
    """The cluster is too small for it, even when idle."""
    NODES_CORDONED = "NodesCordoned"
    """It needs nodes that are cordoned, or GPUs that are out of use."""
    HELD = "Held"
    """By its user, until released."""
    BACKOFF = "Backoff"
    """A pause after a failure or a refusal."""
    NO_NODES = "NoNodes"
    """No node has joined."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job: when it was decided, up and over, and what its preemption cost.

    All ``_at_ms`` are times of the input log. None: not (yet) reached.
    """

    run_id: str
    nodes: tuple[str, ...] = ()
    placed_at_ms: int = 0
    running_at_ms: int | None = None
    first_step_at_ms: int | None = None
    asked_at_ms: int | None = None
    saved_at_ms: int | None = None
    ended_at_ms: int | None = None
    outcome: RunOutcome | None = None
    message: str = ""
    resumed_step: int | None = None
    saved_step: int | None = None
    save_ms: int | None = None
    stop_ms: int | None = None
    restore_ms: int | None = None
    first_step_ms: int | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job now. No environment and no command in it: views are read by everybody."""

    job_id: int
    name: str
    user: str
    state: JobState
    reason: str = ""
    message: str = ""
    workers: int = 0
    gpus_per_worker: int = 0
    ps: int = 0
    gpus: int = 0
    labels: dict[str, str] = {}
    queue_index: int = 0
    attained_gpu_ms: int = 0
    """At ``as_of_ms``; grows by ``gpus`` a millisecond while ``counting``."""
    counting: bool = False
    waited_ms: int = 0
    skew: float | None = None
    submitted_at_ms: int = 0
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    as_of_ms: int = 0
    run_id: str | None = None
    placement: dict[str, tuple[str, ...]] = {}
    """Node -> GPU ids of the present run."""
    tasks: dict[str, str] = {}
    """Task name -> node of the newest run; tells where the logs are."""
    attempts: int = 0
    preemptions: int = 0
    failures: int = 0
    node_losses: int = 0
    exit_code: int | None = None
    signal: int | None = None
    problems: tuple[Problem, ...] = ()
    runs: tuple[Attempt, ...] = ()
    """The newest 20 attempts, oldest first."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node now."""

    node: str
    state: str
    """up, silent, lost or left."""
    host: str = ""
    cordoned: bool = False
    has_launcher: bool = True
    """A launcher has reported since the node came up, and has not left or gone silent."""
    note: str = ""
    problem: str = ""
    gpus: tuple[GpuInfo, ...] = ()
    unhealthy: dict[str, GpuFaultReason] = {}
    details: dict[str, str] = {}
    """GPU id -> what is known of its fault."""
    owners: dict[str, str] = {}
    """GPU id -> run id."""
    as_of_ms: int = 0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is, with the numbers that decide."""

    job_id: int
    state: JobState
    reason: str
    message: str
    queue_index: int
    attained_gpu_ms: int
    next_limit_gpu_ms: int | None
    """Service at which it is demoted; None in the last queue."""
    position: int | None
    """Place among the active jobs in the scheduler's order, from 1."""
    ahead_gpus: int
    """GPUs wanted by the jobs ahead of it."""
    capacity_gpus: int
    waited_ms: int
    promoted_at_waited_ms: int | None
    story: tuple[str, ...] = ()
