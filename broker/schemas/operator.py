"""What the leader and the operators say: time, settings, terms."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from broker.schemas.base import Input, Message

GPU_SECOND_MS = 1_000
DEFAULT_LIMITS_GPU_MS = tuple(1_800 * 4**i * GPU_SECOND_MS for i in range(7))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changes a decision. Times are milliseconds, service GPU-milliseconds."""

    policy: Literal["las", "fifo"] = "las"
    """Least attained service (2DAS), or first come, first served."""
    queue_limits_gpu_ms: Annotated[
        tuple[Annotated[int, Meta(ge=1)], ...], Meta(description="ascending; K is one more")
    ] = DEFAULT_LIMITS_GPU_MS
    queue_order: Literal["running_first", "start_time"] = "running_first"
    """Inside a queue: those that hold GPUs stay ahead, or strictly by first start."""
    promote_knob: Annotated[float, Meta(gt=0)] | None = None
    """The paper's PROMOTEKNOB; None means off."""
    promote_floor_ms: Annotated[int, Meta(ge=0)] = 4 * 3_600_000
    """Nobody is promoted who has waited less than this."""
    pack_limit: Annotated[float, Meta(ge=0, le=1)] = 0.38
    """PACKLIMIT: jobs of higher skew are consolidated."""
    consolidate: Literal["require", "prefer"] = "prefer"
    """Jobs of high skew wait for the fewest nodes, or take more if these are not free."""
    preempt_exempt_ms: Annotated[int, Meta(ge=0)] = 60_000
    """Least running time before a job may be preempted."""
    preempt_exempt_costs: Annotated[int, Meta(ge=0)] = 8
    """The same in multiples of what the job's last preemption cost; the longer time holds."""
    launch_limit_ms: Annotated[int, Meta(ge=1)] = 60_000
    """A gang not up whole after this long is aborted."""
    restart_backoff_ms: Annotated[int, Meta(ge=1)] = 2_000
    """First wait after a failure or a refusal; doubles, at most 32 times this."""


class SettingsChanged(Input, frozen=True, kw_only=True, tag="scheduler.settings_changed"):
    """From here on decide by these settings."""

    settings: Settings


class ClockAdvanced(Input, frozen=True, kw_only=True, tag="scheduler.clock_advanced"):
    """A deadline of the core is due; the log's timestamp of this message is the time."""


class SkewMeasured(Input, frozen=True, kw_only=True, tag="profile.skew_measured"):
    """The skew S_J of a job: largest tensor / all bytes of an iteration (paper section 4.3)."""

    job_id: int
    skew: Annotated[float, Meta(ge=0, le=1)]
    source: str = ""


class PackLimitChanged(Input, frozen=True, kw_only=True, tag="profile.pack_limit_changed"):
    """The profiler refitted PACKLIMIT."""

    pack_limit: Annotated[float, Meta(ge=0, le=1)]


class LeaderRecord(Message, frozen=True, kw_only=True, tag="log.leader"):
    """Opens a term. Its sequence in the decision log is the epoch that fences all appends."""

    instance: str
    version: str
    input_seq: int
    """Inputs up to here were decided by earlier leaders as far as recorded."""
