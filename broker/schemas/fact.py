"""What the scheduler says has happened: the facts that views, dashboards and people read."""

from broker.schemas.base import Output
from broker.schemas.command import TaskPlacement
from broker.schemas.job import Problem
from broker.schemas.node import GpuFaultReason
from broker.schemas.views import JobState, RunOutcome


class JobFact(Output, frozen=True, kw_only=True):
    """Base of facts about a job; times are those of the input log."""

    job_id: int


class JobQueued(JobFact, frozen=True, kw_only=True, tag="job.queued"):
    """The job was accepted, or waits again after a run ended."""

    queue_index: int
    reason: str = ""


class JobRejected(JobFact, frozen=True, kw_only=True, tag="job.rejected"):
    """The request was not a valid job."""

    problems: tuple[Problem, ...]


class JobHeld(JobFact, frozen=True, kw_only=True, tag="job.held"):
    """The job waits until it is released."""

    user: str = ""


class RunPlaced(JobFact, frozen=True, kw_only=True, tag="job.placed"):
    """GPUs were chosen for a new run; its launchers prepare."""

    run_id: str
    tasks: tuple[TaskPlacement, ...]


class RunRunning(JobFact, frozen=True, kw_only=True, tag="job.running"):
    """The whole gang is up; from here service is counted."""

    run_id: str


class RunStopping(JobFact, frozen=True, kw_only=True, tag="job.stopping"):
    """The run was asked to stop. ``for_job`` is the job its GPUs go to, when preempted."""

    run_id: str
    reason: str
    for_job: int | None = None


class RunCheckpointSaved(JobFact, frozen=True, kw_only=True, tag="job.checkpointed"):
    """A save is complete; ``asked`` if it answers a request to stop."""

    run_id: str
    step: int
    save_ms: int
    asked: bool


class RunRestored(JobFact, frozen=True, kw_only=True, tag="job.resumed"):
    """The run's first step is done, starting from ``step``."""

    run_id: str
    step: int
    restore_ms: int
    first_step_ms: int


class RunEnded(JobFact, frozen=True, kw_only=True, tag="job.run_ended"):
    """Every node reported that nothing of the run is left."""

    run_id: str
    outcome: RunOutcome
    message: str = ""


class JobDemoted(JobFact, frozen=True, kw_only=True, tag="job.demoted"):
    """Attained service reached the limit of its queue."""

    queue_index: int
    attained_gpu_ms: int


class JobPromoted(JobFact, frozen=True, kw_only=True, tag="job.promoted"):
    """It waited too long against its running time: back to the first queue."""

    waited_ms: int


class JobEnded(JobFact, frozen=True, kw_only=True, tag="job.ended"):
    """The job reached its one terminal state."""

    state: JobState
    reason: str
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None


class NodeFact(Output, frozen=True, kw_only=True):
    """Base of facts about a node."""

    node: str


class NodeUp(NodeFact, frozen=True, kw_only=True, tag="node.up"):
    """A node offers ``gpus`` GPUs; ``problem`` says why there are none."""

    gpus: int
    problem: str = ""


class NodeDown(NodeFact, frozen=True, kw_only=True, tag="node.down"):
    """``state`` is left, silent or lost."""

    state: str


class NodeCordoned(NodeFact, frozen=True, kw_only=True, tag="node.cordoned"):
    """A node takes nothing new, or takes work again."""

    cordoned: bool
    user: str = ""
    note: str = ""


class GpuChanged(NodeFact, frozen=True, kw_only=True, tag="node.gpu"):
    """A GPU went out of use (with a reason), or came back."""

    gpu_id: str
    reason: GpuFaultReason | None = None
    detail: str = ""


AnyJobFact = (
    JobQueued
    | JobRejected
    | JobHeld
    | RunPlaced
    | RunRunning
    | RunStopping
    | RunCheckpointSaved
    | RunRestored
    | RunEnded
    | JobDemoted
    | JobPromoted
    | JobEnded
)
AnyNodeFact = NodeUp | NodeDown | NodeCordoned | GpuChanged
AnyFact = AnyJobFact | AnyNodeFact


def fact_kind(fact: JobFact | NodeFact) -> str:
    """The last token of a fact's subject: its tag without the entity."""
    tag = type(fact).__struct_config__.tag
    assert isinstance(tag, str)
    return tag.split(".", 1)[1]
