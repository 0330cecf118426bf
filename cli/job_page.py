"""The page of `tiresias show`: what a person wants to know about one job, top down."""

from collections.abc import Iterable, Sequence

from broker.schemas.fact import JobFact
from broker.schemas.node import RunProgress
from broker.schemas.views import Attempt, JobView
from cli import output
from cli.output import counted, local_time, printable, service, span
from cli.story import preemptions, queue_name, sentence

_ATTEMPT_COLUMNS = ("RUN", "OUTCOME", "PLACED", "RAN", "FROM STEP", "SAVED", "NODES", "MESSAGE")
_PREEMPTION_COLUMNS = (
    "RUN", "ASKED", "SAVE", "STOP", "FREE", "WAITED", "START", "RESTORE", "FIRST STEP", "STEP",
)  # fmt: skip


def page(
    view: JobView, story: Sequence[JobFact], progress: RunProgress | None, now_ms: int
) -> None:
    """Print everything about a job."""
    output.print_lines([printable(f"job {view.job_id}  {view.name}  {view.state}")])
    output.print_lines(_summary(view, progress, now_ms))
    if view.problems:
        output.print_lines(["", "problems"])
        output.print_lines(
            printable(f"  {problem.path}: {problem.message}" if problem.path else problem.message)
            for problem in view.problems
        )
    if view.runs:
        output.print_lines(["", "attempts"])
        output.print_table(_ATTEMPT_COLUMNS, (_attempt_row(run, now_ms) for run in view.runs))
    if put_aside := list(_preemption_rows(view)):
        output.print_lines(["", "preemptions"])
        output.print_table(_PREEMPTION_COLUMNS, put_aside)
    if story:
        output.print_lines(["", "story"])
        output.print_lines(
            printable(f"  {local_time(fact.at_ms)}  {sentence(fact)}") for fact in story
        )


def _summary(view: JobView, progress: RunProgress | None, now_ms: int) -> Iterable[str]:
    servers = f" + {counted(view.ps, 'parameter server')}" if view.ps else ""
    each = counted(view.gpus_per_worker, "GPU")
    gang = f"{counted(view.workers, 'worker')} x {each} = {counted(view.gpus, 'GPU')}{servers}"
    attained = service(view.attained_gpu_ms)
    placement = "; ".join(f"{node}: {', '.join(ids)}" for node, ids in view.placement.items())
    rows = {
        "reason": view.reason,
        "message": view.message,
        "user": view.user,
        "gang": gang if view.workers else "",
        "queue": "" if view.state.is_terminal else queue_name(view.queue_index),
        "attained": f"{attained} (growing)" if view.counting else attained,
        "waited": span(view.waited_ms),
        "submitted": f"{local_time(view.submitted_at_ms)} ({_age(view, now_ms)})",
        "started": local_time(view.started_at_ms) if view.started_at_ms else "",
        "ended": local_time(view.ended_at_ms) if view.ended_at_ms else "",
        "exit": _exit_text(view),
        "placement": placement,
        "progress": _progress_text(progress),
        "skew": "" if view.skew is None else f"{view.skew:.3f}",
        "counts": ", ".join(
            (
                counted(view.attempts, "attempt"),
                counted(view.preemptions, "preemption"),
                counted(view.failures, "failure"),
                f"{view.node_losses} times its node was lost",
            )
        ),
        "labels": ", ".join(f"{key}={value}" for key, value in view.labels.items()),
    }
    return (printable(f"  {name:<11}{value}") for name, value in rows.items() if value)


def _age(view: JobView, now_ms: int) -> str:
    if view.ended_at_ms is not None:
        return f"{span(view.ended_at_ms - view.submitted_at_ms)} to its end"
    return f"{span(now_ms - view.submitted_at_ms)} ago"


def _exit_text(view: JobView) -> str:
    """Write the exit as ``code:signal``, which tells both at once."""
    if view.exit_code is None and view.signal is None:
        return ""
    return f"{view.exit_code or 0}:{view.signal or 0}"


def _progress_text(progress: RunProgress | None) -> str:
    if progress is None or progress.step is None:
        return ""
    total = f" of {progress.total_steps}" if progress.total_steps else ""
    metrics = "".join(f", {name} {value:.4g}" for name, value in progress.metrics.items())
    return f"step {progress.step}{total}{metrics}"


def _attempt_row(run: Attempt, now_ms: int) -> tuple[object, ...]:
    end_ms = run.ended_at_ms if run.ended_at_ms is not None else now_ms
    return (
        run.run_id,
        run.outcome or "-",
        local_time(run.placed_at_ms),
        "-" if run.running_at_ms is None else span(end_ms - run.running_at_ms),
        "-" if run.resumed_step is None else run.resumed_step,
        "-" if run.saved_step is None else f"step {run.saved_step}",
        ",".join(run.nodes),
        run.message,
    )


def _preemption_rows(view: JobView) -> Iterable[tuple[object, ...]]:
    for one in preemptions(view.runs):
        phases = (
            one.save_ms, one.stop_ms, one.free_ms, one.waited_ms, one.start_ms, one.restore_ms,
            one.first_step_ms,
        )  # fmt: skip
        steps = f"{_known(one.saved_step)} -> {_known(one.resumed_step)}"
        yield (one.run_id, local_time(one.asked_at_ms), *(span(phase) for phase in phases), steps)


def _known(step: int | None) -> str:
    return "?" if step is None else str(step)
