"""What users ask for: submit, cancel, hold, release; and how a job ends or waits again."""

from broker.schemas.fact import JobEnded, JobHeld, JobQueued, JobRejected
from broker.schemas.job import (
    JobCancelRequested,
    JobHoldRequested,
    JobRefused,
    JobReleaseRequested,
    JobSubmitted,
)
from broker.schemas.run import StopReason
from broker.schemas.views import JobState, JobView, RunOutcome
from scheduler_svc.core import runs
from scheduler_svc.core.lifecycle import JobPhase
from scheduler_svc.core.record import JobRecord
from scheduler_svc.core.verdict import Verdict
from scheduler_svc.core.world import World, skew_key

MAX_BACKOFF_DOUBLINGS = 5

_FINAL_STATES = {
    RunOutcome.SUCCEEDED: (JobState.SUCCEEDED, "Succeeded"),
    RunOutcome.CANCELLED: (JobState.CANCELLED, "Cancelled"),
    RunOutcome.TIMED_OUT: (JobState.TIMED_OUT, "TimedOut"),
}


def on_submitted(world: World, job_id: int, message: JobSubmitted) -> None:
    """A new job enters the first queue."""
    spec = message.spec
    job = JobRecord(
        job_id=job_id,
        workers=spec.workers,
        gpus_per_worker=spec.gpus_per_worker,
        consolidate=spec.consolidate,
        skew=world.skews.get(skew_key(message.user, spec.name)),
        user=message.user,
        spec=spec,
        submitted_at_ms=world.now_ms,
    )
    world.jobs[job_id] = job
    world.engine.submit(job, world.now_ms)
    world.tell(job, f"submitted by {job.user}: {job.gpus} GPUs")
    world.emit(JobQueued, job_id=job_id, queue_index=job.queue_index)


def on_refused(world: World, job_id: int, message: JobRefused) -> None:
    """A request that is no valid job: shown as REJECTED, never scheduled."""
    world.rejected.append(
        JobView(
            job_id=job_id,
            name=message.name,
            user=message.user,
            state=JobState.REJECTED,
            reason="InvalidRequest",
            message="; ".join(f"{p.path}: {p.message}" for p in message.problems),
            submitted_at_ms=world.now_ms,
            ended_at_ms=world.now_ms,
            as_of_ms=world.now_ms,
            problems=message.problems,
        )
    )
    world.emit(JobRejected, job_id=job_id, problems=message.problems)


def on_cancel(world: World, message: JobCancelRequested) -> None:
    """End the job now if it waits, else when nothing of its run is left."""
    job = world.jobs.get(message.job_id)
    if job is None or job.phase is JobPhase.ENDED:
        return
    by = f"cancelled by {message.user}"
    if job.run is None:
        end(world, job, JobState.CANCELLED, "Cancelled", by)
        return
    if not job.wants_cancel or (message.force and not job.is_cancel_forced):
        job.wants_cancel, job.is_cancel_forced = True, message.force
        world.tell(job, f"cancel asked by {message.user}")
        grace_ms = 0 if message.force else job.spec.grace_ms
        runs.stop(world, job, StopReason.CANCEL, grace_ms=grace_ms)


def on_hold(world: World, message: JobHoldRequested) -> None:
    """Keep the job from running; the next pass preempts it if it runs."""
    job = world.jobs.get(message.job_id)
    if job is None or job.is_held or job.phase is JobPhase.ENDED:
        return
    world.engine.set_held(job, world.now_ms, is_held=True)
    if job.phase is JobPhase.QUEUED:
        job.step("hold")
    world.tell(job, f"held by {message.user}")
    world.emit(JobHeld, job_id=job.job_id, user=message.user)


def on_release(world: World, message: JobReleaseRequested) -> None:
    """Let a held job be scheduled again."""
    job = world.jobs.get(message.job_id)
    if job is None or not job.is_held or job.phase is JobPhase.ENDED:
        return
    world.engine.set_held(job, world.now_ms, is_held=False)
    if job.phase is JobPhase.HELD:
        job.step("release")
    world.tell(job, f"released by {message.user}")
    world.emit(JobQueued, job_id=job.job_id, queue_index=job.queue_index, reason="Released")


def after_run(world: World, job: JobRecord, verdict: Verdict) -> None:
    """The job's run is over: end the job, or let it wait for the next attempt."""
    outcome = verdict.outcome
    job.exit_code, job.signal = verdict.exit_code, verdict.signal
    if outcome in _FINAL_STATES:
        end(world, job, *_FINAL_STATES[outcome], verdict.message)
    elif outcome is RunOutcome.FAILED:
        job.failures += 1
        if may_restart(job, verdict):
            _requeue(world, job, "Failed", backoff_step=job.failures)
        else:
            end(world, job, JobState.FAILED, "TaskFailed", verdict.message)
    elif outcome is RunOutcome.PREEMPTED:
        job.preemptions += 1
        _requeue(world, job, "Preempted", backoff_step=0)
    elif outcome is RunOutcome.LOST:
        job.node_losses += 1
        _requeue(world, job, "NodeLost", backoff_step=1)
    else:
        job.aborts_in_a_row += 1
        _requeue(world, job, "StartAborted", backoff_step=job.aborts_in_a_row)


def may_restart(job: JobRecord, verdict: Verdict) -> bool:
    """Whether the restart rules of the job file allow another attempt after its own failure."""
    rules = job.spec.restart
    code = verdict.exit_code
    if job.failures > rules.max or (code is not None and code in rules.never_on_exit):
        return False
    return not rules.on_exit or (code is not None and code in rules.on_exit)


def end(world: World, job: JobRecord, state: JobState, reason: str, message: str) -> None:
    """Bring the job to its one terminal state."""
    world.engine.withdraw(job, world.now_ms)
    job.step("end")
    job.end_state, job.reason, job.message = state, reason, message
    job.ended_at_ms = world.now_ms
    world.ended.append(job.job_id)
    world.tell(job, f"ended {state}", message)
    world.emit(
        JobEnded,
        job_id=job.job_id,
        state=state,
        reason=reason,
        message=message,
        exit_code=job.exit_code,
        signal=job.signal,
    )


def _requeue(world: World, job: JobRecord, reason: str, *, backoff_step: int) -> None:
    """Wait again, at once or after a doubling backoff; queue and service stay what they are."""
    job.step("requeue_held" if job.is_held else "requeue")
    job.reason = reason
    if backoff_step:
        doublings = min(backoff_step - 1, MAX_BACKOFF_DOUBLINGS)
        delay_ms = world.settings.restart_backoff_ms << doublings
        world.engine.back_off(job, world.now_ms + delay_ms)
    world.tell(job, f"queued again: {reason}")
    world.emit(JobQueued, job_id=job.job_id, queue_index=job.queue_index, reason=reason)
