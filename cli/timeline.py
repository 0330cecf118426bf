"""When each job waited, started, ran and stopped, drawn with one character a moment."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from broker.schemas.views import Attempt, JobView
from cli.output import counted, printable, span

DEFAULT_WIDTH = 60
_SHADES = "·▒█▓"
_PLAIN = ".+#s"


class Phase(StrEnum):
    """What a job does at a moment."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "saving, stopping"


class Segment(msgspec.Struct, frozen=True):
    """A stretch of time in one phase."""

    phase: Phase
    start_ms: int
    end_ms: int


def segments(view: JobView, now_ms: int) -> list[Segment]:
    """Return a job's whole life, without gaps, up to its end or now."""
    end_ms = view.ended_at_ms if view.ended_at_ms is not None else now_ms
    found: list[Segment] = []
    free_ms = view.submitted_at_ms
    for run in view.runs:
        found.append(Segment(Phase.WAITING, free_ms, run.placed_at_ms))
        found.extend(_of_run(run, end_ms))
        free_ms = found[-1].end_ms
    found.append(Segment(Phase.WAITING, free_ms, end_ms))
    return [segment for segment in found if segment.end_ms > segment.start_ms]


def _of_run(run: Attempt, end_ms: int) -> Iterator[Segment]:
    over_ms = run.ended_at_ms if run.ended_at_ms is not None else end_ms
    asked_ms = min(run.asked_at_ms, over_ms) if run.asked_at_ms is not None else over_ms
    up_ms = min(run.running_at_ms, asked_ms) if run.running_at_ms is not None else asked_ms
    yield Segment(Phase.STARTING, run.placed_at_ms, up_ms)
    yield Segment(Phase.RUNNING, up_ms, asked_ms)
    yield Segment(Phase.STOPPING, asked_ms, over_ms)


def draw(
    views: Sequence[JobView], now_ms: int, *, width: int = DEFAULT_WIDTH, marks: str = ""
) -> list[str]:
    """Return a line for each job, an axis, and what the marks mean."""
    if not views:
        return []
    marks = marks or usual_marks()
    mark_of = dict(zip(Phase, marks, strict=True))
    start_ms = min(view.submitted_at_ms for view in views)
    length_ms = max(max(view.ended_at_ms or now_ms for view in views) - start_ms, 1)
    moments = [start_ms + (column + 0.5) * length_ms / width for column in range(width)]
    margin = max(len(_label(view)) for view in views)
    lines = [f"{_label(view):<{margin}}  {_bar(view, moments, mark_of)}".rstrip() for view in views]
    axis = f"{'0s':<{width // 2}}{span(length_ms / 2):<{width // 2}}{span(length_ms)}"
    legend = "  ".join(f"{mark} {phase}" for phase, mark in mark_of.items())
    return [*lines, f"{'':<{margin}}  {axis}", f"{'':<{margin}}  {legend}"]


def usual_marks() -> str:
    """Return shades, or ASCII where the terminal cannot show them."""
    try:
        _SHADES.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return _PLAIN
    return _SHADES


def _label(view: JobView) -> str:
    return printable(f"{view.job_id} {view.name} ({counted(view.gpus, 'GPU')})")


def _bar(view: JobView, moments: Sequence[float], mark_of: Mapping[Phase, str]) -> str:
    """Draw a job: a mark for its phase at each moment, a space before and after its life."""
    life = segments(view, int(moments[-1]) + 1)
    bar = ""
    for moment_ms in moments:
        phases = (part.phase for part in life if part.start_ms <= moment_ms < part.end_ms)
        phase = next(phases, None)
        bar += mark_of[phase] if phase else " "
    return bar
