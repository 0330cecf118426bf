"""How results look: tables for people, JSON for programs, one error line for both.

JSON has UTC times (ISO 8601 with Z) and nothing cut off; screens have local times with their
offset. Nothing of a job reaches the terminal with control characters in it.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
_UNITS_MS = (
    (DAY_MS, "d", HOUR_MS, "h"),
    (HOUR_MS, "h", MINUTE_MS, "m"),
    (MINUTE_MS, "m", SECOND_MS, "s"),
)
_MANY_GPU_MS = 2 * HOUR_MS
_PIPE_COLUMNS = 10_000
_STATE_STYLES = {
    "RUNNING": "green",
    "SUCCEEDED": "green",
    "STARTING": "cyan",
    "STOPPING": "yellow",
    "UNKNOWN": "magenta",
    "FAILED": "red",
    "REJECTED": "red",
    "TIMED_OUT": "red",
    "CANCELLED": "dim",
    "up": "green",
    "lost": "red",
    "silent": "magenta",
    "OK": "green",
    "WARN": "yellow",
    "FAIL": "red",
}


class Format(StrEnum):
    """Values of ``-o``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    NAME = "name"


def console() -> "Console":
    """Return a console on standard output, plain and without a right margin in a pipe."""
    from rich.console import Console  # noqa: PLC0415 - slow to load, many commands do without

    is_terminal = sys.stdout.isatty()
    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        no_color="NO_COLOR" in os.environ or not is_terminal,
        width=None if is_terminal else _PIPE_COLUMNS,
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
    """Lay out rows under column names; a state gets its colour."""
    from rich.table import Table  # noqa: PLC0415 - slow to load, many commands do without
    from rich.text import Text  # noqa: PLC0415

    result = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        result.add_column(column, overflow="fold")
    for row in rows:
        cells = [printable("" if cell is None else str(cell)) for cell in row]
        result.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in cells))
    return result


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, without spaces at the ends of its lines."""
    screen = console()
    with screen.capture() as capture:
        screen.print(table(columns, rows))
    print_lines(line.rstrip() for line in capture.get().splitlines())


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of a result."""
    for line in lines:
        typer.echo(line)


def print_json(value: Any) -> None:
    """Print a document, indented, in UTF-8 whatever the locale."""
    text = msgspec.json.format(msgspec.json.encode(document(value)), indent=2)
    sys.stdout.flush()
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


def print_note(text: str) -> None:
    """Tell the person something that is not the result, on standard error."""
    typer.echo(printable(text, keep="\n"), err=True)


def print_error(text: str) -> None:
    """Tell why a command failed, on standard error."""
    print_note(f"tiresias: {text}")


def document(value: Any) -> Any:
    """Return plain values for JSON, with ``*_at_ms`` turned into ISO times named ``*_at``."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, dict):
        return dict(_entry(key, part) for key, part in plain.items())
    return [document(part) for part in plain] if isinstance(plain, list | tuple) else plain


def _entry(key: str, value: Any) -> tuple[str, Any]:
    if key.endswith("_at_ms") or key in ("at_ms", "as_of_ms"):
        return key.removesuffix("_ms"), None if value is None else iso_time(value)
    return key, document(value)


def printable(text: str, keep: str = "") -> str:
    """Replace control characters, which could repaint the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else "\ufffd" for char in text)


def iso_time(at_ms: int) -> str:
    """Write a time for programs: UTC, milliseconds, Z."""
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def local_time(at_ms: int | None) -> str:
    """Write a time for people: local, with its offset from UTC."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def span(duration_ms: float | None) -> str:
    """Write a duration in at most two units; a negative one (clocks differ) is 0."""
    if duration_ms is None:
        return "-"
    whole = max(0, round(duration_ms))
    for large, large_name, small, small_name in _UNITS_MS:
        if whole >= large:
            return f"{whole // large}{large_name}{whole % large // small:02d}{small_name}"
    return f"{whole / SECOND_MS:.1f}s" if whole >= SECOND_MS else f"{whole}ms"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun in the singular or plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def service(gpu_ms: int) -> str:
    """Write attained service in GPU-seconds, or GPU-hours when it is much."""
    if gpu_ms < _MANY_GPU_MS:
        return f"{max(0, gpu_ms) / SECOND_MS:.0f} GPU-s"
    return f"{gpu_ms / HOUR_MS:.1f} GPU-h"
