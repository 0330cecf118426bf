"""What the demo says at its end: a summary beside FIFO, and whether all went as promised."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

import msgspec

from broker.schemas.views import JobState, JobView
from cli import output
from cli.output import span
from cli.story import Preemption, preemptions
from simulator.replay import TraceJob, fifo_jct_ms

LOSS_TOLERANCE = 1e-6


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of the demo, and whether it was kept."""

    promise: str
    is_kept: bool
    detail: str


def fifo_completion_ms(views: Sequence[JobView], node_gpus: Mapping[str, int]) -> dict[int, int]:
    """Return each job's completion time if the same core had run them first in, first out.

    A job's length is the service it had here divided by its GPUs.
    """
    first_ms = min(view.submitted_at_ms for view in views)
    trace = [
        TraceJob(
            job_id=view.job_id,
            submit_ms=view.submitted_at_ms - first_ms,
            workers=view.workers,
            gpus_per_worker=view.gpus_per_worker,
            duration_ms=max(1, view.attained_gpu_ms // max(1, view.gpus)),
        )
        for view in views
    ]
    return fifo_jct_ms(trace, node_gpus)


def print_summary(views: Sequence[JobView], node_gpus: Mapping[str, int]) -> None:
    """Print completion times beside FIFO's, and what each preemption took."""
    fifo_ms = fifo_completion_ms(views, node_gpus)
    here_ms = {view.job_id: completion_ms(view) for view in views}
    rows: list[tuple[object, ...]] = [
        (
            view.name,
            view.gpus,
            span(here_ms[view.job_id]),
            span(fifo_ms[view.job_id]),
            span(view.waited_ms),
            view.preemptions,
        )
        for view in views
    ]
    rows.append(("average", "", span(mean(here_ms.values())), span(mean(fifo_ms.values())), "", ""))
    output.print_table(("JOB", "GPUS", "TOOK", "WITH FIFO", "WAITED", "PREEMPTED"), rows)
    output.print_lines(["", *(line for view in views for line in preemption_lines(view))])


def completion_ms(view: JobView) -> int:
    """Return the time from submission to the end (JCT)."""
    return max(0, (view.ended_at_ms or view.submitted_at_ms) - view.submitted_at_ms)


def preemption_lines(view: JobView) -> Iterator[str]:
    """Tell what each preemption of a job took."""
    for one in preemptions(view.runs):
        yield (
            f"{view.name}: asked to stop, saved step {one.saved_step} in {span(one.save_ms)}, "
            f"GPUs free after {span(one.free_ms)}; waited {span(one.waited_ms)}; "
            f"started in {span(one.start_ms)}, restored in {span(one.restore_ms)}, "
            f"first step after {span(one.first_step_ms)}, from step {one.resumed_step}"
        )


def checks(views: Sequence[JobView], losses: tuple[float | None, float | None]) -> list[Check]:
    """Judge the demo; ``views`` begins with the long job, ``losses`` with its loss."""
    long = views[0]
    aside = preemptions(long.runs)
    unfinished = [view.name for view in views if view.state is not JobState.SUCCEEDED]
    loss, reference = losses
    return [
        Check(
            promise="every job succeeded",
            is_kept=not unfinished,
            detail=", ".join(unfinished) or f"{len(views)} jobs",
        ),
        Check(
            promise="the long job gave way",
            is_kept=bool(aside),
            detail=f"preempted {len(aside)} times",
        ),
        Check(
            promise="it went on at the step where it had stopped",
            is_kept=bool(aside) and all(_went_on(one) for one in aside),
            detail=", ".join(f"{one.saved_step} -> {one.resumed_step}" for one in aside) or "-",
        ),
        Check(
            promise=f"it reached the uninterrupted run's loss (within {LOSS_TOLERANCE:g})",
            is_kept=loss is not None
            and reference is not None
            and abs(loss - reference) <= LOSS_TOLERANCE,
            detail=f"{loss} and {reference}",
        ),
    ]


def _went_on(one: Preemption) -> bool:
    return one.saved_step is not None and 0 < one.saved_step == one.resumed_step


def print_checks(judged: Sequence[Check]) -> None:
    """Print each promise with a mark."""
    rows = (("OK" if each.is_kept else "FAIL", each.promise, each.detail) for each in judged)
    output.print_table(("", "CHECK", "FOUND"), rows)
