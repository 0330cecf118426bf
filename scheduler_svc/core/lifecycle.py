"""The life of a job and of a run as tables; the diagrams in docs are drawn from them.

A job is what a user submitted, a run one attempt of it. Nothing else may change a phase.
"""

from enum import StrEnum

from broker.schemas.views import JobState
from scheduler_svc.core.errors import InvalidTransition


class JobPhase(StrEnum):
    """Where a job is in its life; terminal phases are named by `JobState`."""

    QUEUED = "queued"
    HELD = "held"
    ACTIVE = "active"
    """It has a run that is not over."""
    ENDED = "ended"


class RunPhase(StrEnum):
    """Where one attempt is in its life."""

    PREPARING = "preparing"
    """GPUs held, launchers reserve devices and ports."""
    STARTING = "starting"
    """All prepared, told to start."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Told to stop, or partly over; its GPUs are releasing."""
    ENDED = "ended"


JOB_TRANSITIONS: dict[tuple[JobPhase, str], JobPhase] = {
    (JobPhase.QUEUED, "place"): JobPhase.ACTIVE,
    (JobPhase.QUEUED, "hold"): JobPhase.HELD,
    (JobPhase.QUEUED, "end"): JobPhase.ENDED,
    (JobPhase.HELD, "release"): JobPhase.QUEUED,
    (JobPhase.HELD, "end"): JobPhase.ENDED,
    (JobPhase.ACTIVE, "requeue"): JobPhase.QUEUED,
    (JobPhase.ACTIVE, "requeue_held"): JobPhase.HELD,
    (JobPhase.ACTIVE, "end"): JobPhase.ENDED,
}

RUN_TRANSITIONS: dict[tuple[RunPhase, str], RunPhase] = {
    (RunPhase.PREPARING, "all_prepared"): RunPhase.STARTING,
    (RunPhase.PREPARING, "all_started"): RunPhase.RUNNING,
    (RunPhase.STARTING, "all_started"): RunPhase.RUNNING,
    (RunPhase.PREPARING, "stop"): RunPhase.STOPPING,
    (RunPhase.STARTING, "stop"): RunPhase.STOPPING,
    (RunPhase.RUNNING, "stop"): RunPhase.STOPPING,
    (RunPhase.STOPPING, "stop"): RunPhase.STOPPING,
    (RunPhase.PREPARING, "all_exited"): RunPhase.ENDED,
    (RunPhase.STARTING, "all_exited"): RunPhase.ENDED,
    (RunPhase.RUNNING, "all_exited"): RunPhase.ENDED,
    (RunPhase.STOPPING, "all_exited"): RunPhase.ENDED,
}


def next_job_phase(what: str, phase: JobPhase, event: str, story: tuple[str, ...]) -> JobPhase:
    """Look the step up, or raise `InvalidTransition` with the job's story."""
    found = JOB_TRANSITIONS.get((phase, event))
    if found is None:
        raise InvalidTransition(what, phase, event, story)
    return found


def next_run_phase(what: str, phase: RunPhase, event: str, story: tuple[str, ...]) -> RunPhase:
    """Look the step up, or raise `InvalidTransition` with the job's story."""
    found = RUN_TRANSITIONS.get((phase, event))
    if found is None:
        raise InvalidTransition(what, phase, event, story)
    return found


SHOWN_STATE: dict[RunPhase, JobState] = {
    RunPhase.PREPARING: JobState.STARTING,
    RunPhase.STARTING: JobState.STARTING,
    RunPhase.RUNNING: JobState.RUNNING,
    RunPhase.STOPPING: JobState.STOPPING,
    RunPhase.ENDED: JobState.STOPPING,
}
"""What people see of a job whose run is in this phase."""
