"""What a user writes: the job file, and the requests about jobs.

The keys of `JobSpec` are the keys of the YAML job file and of the JSON request on
``tiresias.v1.jobs.<user>.submit``.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from broker.schemas.base import Input

DURATION_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"
Duration = Annotated[
    str,
    Meta(
        pattern=DURATION_PATTERN,
        max_length=16,
        description="a number and a unit: 90s, 10m, 2h, 1d",
    ),
]
Folder = Annotated[str, Meta(min_length=1, max_length=4096)]
_DURATION_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration that matches `DURATION_PATTERN`."""
    text = text.strip()
    unit = "ms" if text.endswith("ms") else text[-1]
    return int(float(text.removesuffix(unit)) * _DURATION_UNITS_MS[unit])


class RestartSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a failed job runs again. Preemptions and machine faults never count."""

    max: Annotated[int, Meta(ge=0, le=1000, description="restarts after the job's own failures")]
    on_exit: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=255)], ...],
        Meta(max_length=64, description="restart only for these exit codes; empty means any"),
    ] = ()
    never_on_exit: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=255)], ...],
        Meta(max_length=64, description="never restart for these exit codes"),
    ] = ()


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a job's checkpoints live, and how many are kept."""

    dir: Annotated[
        Folder | None,
        Meta(description="folder every node can reach; default: a folder of the product's own"),
    ] = None
    every_steps: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="also save each N steps; default: about once a minute"),
    ] = None
    keep: Annotated[int, Meta(ge=1, le=1000, description="complete checkpoints kept")] = 2


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job, as its user describes it. A job holds ``workers * gpus_per_worker`` GPUs."""

    name: Annotated[
        str, Meta(min_length=1, max_length=128, description="what people call the job; any script")
    ]
    run: Annotated[
        Annotated[str, Meta(min_length=1, max_length=262_144)]
        | Annotated[tuple[str, ...], Meta(min_length=1, max_length=4096)],
        Meta(description="a bash script (text), or a command and its arguments (list)"),
    ]
    version: Annotated[Literal[1], Meta(description="version of the job file")] = 1
    workers: Annotated[int, Meta(ge=1, le=4096, description="number of worker processes")] = 1
    gpus_per_worker: Annotated[
        int, Meta(ge=1, le=64, description="GPUs of each worker, all on one node")
    ] = 1
    ps: Annotated[
        int,
        Meta(
            ge=0, le=256, description="TensorFlow parameter servers (CPU only); adds a chief task"
        ),
    ] = 0
    env: Annotated[
        dict[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)], str],
        Meta(description="environment variables of every task", max_length=1024),
    ] = {}
    workdir: Annotated[Folder | None, Meta(description="folder the tasks start in")] = None
    time_limit: Annotated[
        Duration | None, Meta(description="longest running time, waiting not counted")
    ] = None
    grace: Annotated[Duration, Meta(description="time from the request to stop until the kill")] = (
        "60s"
    )
    consolidate: Annotated[
        Literal["require", "prefer"] | None,
        Meta(
            description="wait for the fewest nodes, or only prefer them; default: cluster setting"
        ),
    ] = None
    restart: RestartSpec = RestartSpec(max=0)
    checkpoint: CheckpointSpec = CheckpointSpec()
    labels: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=256)]
        ],
        Meta(max_length=64, description="free key-value pairs to find and group jobs by"),
    ] = {}

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang: the W of the paper."""
        return self.workers * self.gpus_per_worker

    @property
    def grace_ms(self) -> int:
        return duration_ms(self.grace)

    @property
    def time_limit_ms(self) -> int | None:
        return None if self.time_limit is None else duration_ms(self.time_limit)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong with a job request. ``path`` is the key path; ``line`` is of the file."""

    path: str
    message: str
    line: int | None = None


class JobSubmitted(Input, frozen=True, kw_only=True, tag="job.submitted"):
    """A user asks for a job. Its number is the sequence of this message in the input log."""

    user: str
    spec: JobSpec


class JobRefused(Input, frozen=True, kw_only=True, tag="job.refused"):
    """A request on the submit subject that is not a valid job; becomes a REJECTED job."""

    user: str
    name: str
    problems: tuple[Problem, ...]


class JobCancelRequested(Input, frozen=True, kw_only=True, tag="job.cancel_requested"):
    """Stop the job. ``force`` skips the grace."""

    job_id: int
    user: str = ""
    force: bool = False


class JobHoldRequested(Input, frozen=True, kw_only=True, tag="job.hold_requested"):
    """Keep a waiting job from starting; a running one is preempted."""

    job_id: int
    user: str = ""


class JobReleaseRequested(Input, frozen=True, kw_only=True, tag="job.release_requested"):
    """Let a held job be scheduled again."""

    job_id: int
    user: str = ""
