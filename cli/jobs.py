"""`tiresias ls`, `show` and `why`: the present, the history and the reason."""

import asyncio
from collections.abc import Callable
from typing import Annotated

import typer

from broker.schemas.node import RunProgress
from broker.schemas.views import Explanation, JobState, JobView
from cli import client, output
from cli.client import Client
from cli.exit_codes import CommandError, ExitCode
from cli.job_page import page
from cli.options import JobArgument, NatsOption, OutputOption
from cli.output import Format, local_time, service, span
from cli.story import preemptions, queue_name

REFRESH_S = 1.0
_COLUMNS = ("ID", "NAME", "USER", "STATE", "REASON", "QUEUE", "GPUS", "ATTAINED", "STEP", "AGE")
_WIDE_COLUMNS = ("RUNS", "PREEMPTED", "WAITED", "NODES", "LABELS", "MESSAGE")


def ls(
    *,
    all_jobs: Annotated[bool, typer.Option("--all", "-a", help="Also those that ended.")] = False,
    state: Annotated[
        list[str] | None, typer.Option(help="Only jobs in this state; may be repeated.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    form: OutputOption = Format.TABLE,
    nats: NatsOption = None,
) -> None:
    """List the jobs that have not ended, or others.

    Examples:
      tiresias ls --watch
      tiresias ls --state FAILED --state TIMED_OUT
      tiresias ls --all -o json
    """
    states = _states(state or [])

    def is_wanted(view: JobView) -> bool:
        in_state = view.state in states if states else all_jobs or not view.state.is_terminal
        return in_state and user in (None, view.user)

    client.run(nats, lambda peer: _list(peer, is_wanted, form, watch=watch))


def show(job: JobArgument, form: OutputOption = Format.TABLE, nats: NatsOption = None) -> None:
    """Show one job: its state, attempts, preemptions and story.

    Example:
      tiresias show 7
    """

    async def body(peer: Client) -> None:
        view = await peer.job(job)
        story = await peer.story(view.job_id)
        progress = (await peer.progress()).get(view.run_id or "")
        if form is Format.JSON:
            parts = {"phases": preemptions(view.runs), "progress": progress, "story": story}
            output.print_json(output.document(view) | output.document(parts))
        elif form is Format.NAME:
            output.print_lines([str(view.job_id)])
        else:
            page(view, story, progress, peer.clock.now_ms())

    client.run(nats, body)


def why(job: JobArgument, form: OutputOption = Format.TABLE, nats: NatsOption = None) -> None:
    """Tell why a job is where it is, with the numbers.

    Example:
      tiresias why 7
    """

    async def body(peer: Client) -> None:
        view = await peer.job(job)
        explanation = await peer.explain(view.job_id)
        if form is Format.JSON:
            output.print_json(explanation)
        else:
            output.print_lines(output.printable(line) for line in _reasons(explanation))

    client.run(nats, body)


def rows_of(
    views: list[JobView], progress: dict[str, RunProgress], now_ms: int, *, wide: bool = False
) -> list[tuple[object, ...]]:
    """Return the table rows of jobs."""
    return [_row(view, progress.get(view.run_id or ""), now_ms, wide=wide) for view in views]


def attained_now(view: JobView, now_ms: int) -> int:
    """Return a job's attained service, which grows while it runs. GPU-milliseconds."""
    grown_ms = max(0, now_ms - view.as_of_ms) if view.counting else 0
    return view.attained_gpu_ms + view.gpus * grown_ms


def _row(
    view: JobView, progress: RunProgress | None, now_ms: int, *, wide: bool
) -> tuple[object, ...]:
    ended_ms = view.ended_at_ms if view.ended_at_ms is not None else now_ms
    row = (
        view.job_id,
        view.name,
        view.user,
        view.state,
        view.reason or "-",
        "-" if view.state.is_terminal else queue_name(view.queue_index),
        view.gpus,
        service(attained_now(view, now_ms)),
        step_text(progress),
        span(ended_ms - view.submitted_at_ms),
    )
    if not wide:
        return row
    labels = ",".join(f"{key}={value}" for key, value in view.labels.items())
    nodes = ",".join(view.placement)
    return (
        *row,
        view.attempts,
        view.preemptions,
        span(view.waited_ms),
        nodes,
        labels,
        view.message,
    )


def step_text(progress: RunProgress | None) -> str:
    """Write a run's progress: step, and how many there are if it said so."""
    if progress is None or progress.step is None:
        return "-"
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)


async def _list(
    peer: Client, is_wanted: Callable[[JobView], bool], form: Format, *, watch: bool
) -> None:
    while True:
        views = await peer.jobs()
        wanted = [view for view in views if is_wanted(view)]
        progress = await peer.progress()
        if watch and output.console().is_terminal:
            output.console().clear()
        _print_jobs(wanted, progress, peer.clock.now_ms(), form, ended=_ended(views))
        if not watch:
            return
        await asyncio.sleep(REFRESH_S)


def _print_jobs(
    views: list[JobView], progress: dict[str, RunProgress], now_ms: int, form: Format, *, ended: int
) -> None:
    if form is Format.JSON:
        documents = [
            output.document(view) | {"progress": output.document(progress.get(view.run_id or ""))}
            for view in views
        ]
        output.print_json(documents)
    elif form is Format.NAME:
        output.print_lines(str(view.job_id) for view in views)
    elif not views:
        hint = f"; {ended} have ended ('tiresias ls --all')" if ended else ""
        output.print_note(f"no such jobs{hint}")
    else:
        wide = form is Format.WIDE
        columns = _COLUMNS + _WIDE_COLUMNS if wide else _COLUMNS
        output.print_table(columns, rows_of(views, progress, now_ms, wide=wide))


def _ended(views: list[JobView]) -> int:
    return sum(view.state.is_terminal for view in views)


def _states(names: list[str]) -> frozenset[JobState]:
    try:
        return frozenset(JobState(part.upper()) for name in names for part in name.split(","))
    except ValueError as error:
        known = ", ".join(JobState)
        raise CommandError(f"--state: {error}; states: {known}", ExitCode.USAGE) from error


def _reasons(explanation: Explanation) -> list[str]:
    limit = explanation.next_limit_gpu_ms
    promoted_at = explanation.promoted_at_waited_ms
    numbers = {
        "state": " ".join(filter(None, (explanation.state, explanation.reason))),
        "queue": queue_name(explanation.queue_index),
        "attained": service(explanation.attained_gpu_ms)
        + (f", demoted at {service(limit)}" if limit is not None else ", in the last queue"),
        "place": None if explanation.position is None else f"{explanation.position} in line",
        "wanted ahead": f"{explanation.ahead_gpus} GPUs",
        "capacity": f"{explanation.capacity_gpus} GPUs",
        "waited": span(explanation.waited_ms)
        + (f", promoted at {span(promoted_at)}" if promoted_at is not None else ""),
    }
    lines = [explanation.message or f"job {explanation.job_id} is {explanation.state}"]
    lines += [f"  {name:<15}{value}" for name, value in numbers.items() if value is not None]
    return [*lines, "", *(f"  {_dated(line)}" for line in explanation.story)]


def _dated(line: str) -> str:
    """Write a line of the story, which begins with milliseconds, with a time for people."""
    at_ms, _, text = line.partition(" ")
    return f"{local_time(int(at_ms))}  {text}" if at_ms.isdecimal() else line
