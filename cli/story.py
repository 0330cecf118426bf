"""Facts about a job as sentences, and the phases of its preemptions as numbers."""

from collections import Counter

import msgspec

from broker.schemas.fact import (
    JobDemoted,
    JobEnded,
    JobFact,
    JobHeld,
    JobPromoted,
    JobQueued,
    JobRejected,
    RunCheckpointSaved,
    RunEnded,
    RunPlaced,
    RunRestored,
    RunRunning,
    RunStopping,
)
from broker.schemas.views import Attempt, RunOutcome
from cli.output import counted, service, span


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """What putting one run aside and bringing it back took; None: not known (yet)."""

    run_id: str
    asked_at_ms: int
    save_ms: int | None
    """Writing the checkpoint."""
    stop_ms: int | None
    """From the request until the last process was gone, as the slowest node tells it."""
    free_ms: int | None
    """From the decision until the GPUs were free."""
    waited_ms: int | None
    """In the queue, until GPUs were found again."""
    start_ms: int | None
    """From then until the whole gang was up."""
    restore_ms: int | None
    first_step_ms: int | None
    saved_step: int | None
    resumed_step: int | None


def queue_name(queue_index: int) -> str:
    """Name a queue as people see it: the first one, with the newest jobs, is Q1."""
    return f"Q{queue_index + 1}"


def preemptions(attempts: tuple[Attempt, ...]) -> list[Preemption]:
    """Return the phases of each preemption among a job's attempts, oldest first."""
    following = (*attempts, None)[1:]
    return [
        _preemption(stopped, asked_at_ms, after)
        for stopped, after in zip(attempts, following, strict=True)
        if stopped.outcome in (RunOutcome.PREEMPTED, None)
        and (asked_at_ms := stopped.asked_at_ms) is not None
    ]


def _preemption(stopped: Attempt, asked_at_ms: int, after: Attempt | None) -> Preemption:
    return Preemption(
        run_id=stopped.run_id,
        asked_at_ms=asked_at_ms,
        save_ms=stopped.save_ms,
        stop_ms=stopped.stop_ms,
        free_ms=_difference(asked_at_ms, stopped.ended_at_ms),
        waited_ms=_difference(stopped.ended_at_ms, after.placed_at_ms) if after else None,
        start_ms=_difference(after.placed_at_ms, after.running_at_ms) if after else None,
        restore_ms=after.restore_ms if after else None,
        first_step_ms=after.first_step_ms if after else None,
        saved_step=stopped.saved_step,
        resumed_step=after.resumed_step if after else None,
    )


def _difference(earlier_ms: int | None, later_ms: int | None) -> int | None:
    return None if earlier_ms is None or later_ms is None else max(0, later_ms - earlier_ms)


def sentence(fact: JobFact) -> str:
    """Tell one fact in words."""
    said = ""
    match fact:
        case RunPlaced() | RunRunning() | RunStopping() | RunCheckpointSaved() | RunRestored():
            text = f"run {fact.run_id} {_of_run(fact)}"
        case JobQueued():
            text, said = f"queued in {queue_name(fact.queue_index)}", fact.reason
        case JobRejected():
            text = f"rejected for {counted(len(fact.problems), 'problem')}"
        case JobHeld():
            text, said = "held", fact.user and f"by {fact.user}"
        case RunEnded():
            text, said = f"run {fact.run_id} ended, {fact.outcome}", fact.message
        case JobDemoted():
            attained = service(fact.attained_gpu_ms)
            text = f"demoted to {queue_name(fact.queue_index)} at {attained}"
        case JobPromoted():
            text = f"promoted to {queue_name(0)} after waiting {span(fact.waited_ms)}"
        case JobEnded():
            text, said = f"ended, {fact.state}", fact.message
        case _:
            text = type(fact).__name__
    return f"{text}: {said}" if said else text


def _of_run(
    fact: RunPlaced | RunRunning | RunStopping | RunCheckpointSaved | RunRestored,
) -> str:
    match fact:
        case RunPlaced():
            gpus: Counter[str] = Counter()
            for task in fact.tasks:
                gpus[task.node] += len(task.gpu_ids)
            return "placed on " + ", ".join(
                f"{node} ({counted(n, 'GPU')})" for node, n in gpus.items()
            )
        case RunRunning():
            return "is up"
        case RunStopping():
            winner = f" for job {fact.for_job}" if fact.for_job else ""
            return f"asked to stop: {fact.reason}{winner}"
        case RunCheckpointSaved():
            return f"saved step {fact.step} in {span(fact.save_ms)}"
        case RunRestored():
            return (
                f"continues from step {fact.step} "
                f"(restore {span(fact.restore_ms)}, first step {span(fact.first_step_ms)})"
            )
