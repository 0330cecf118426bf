"""Where a byte of a rotated log lies.

A log is a row of segments. The name of each tells the offset of its first byte, and segments are
never renamed, so an offset always means the same byte: ``<task>.log`` starts at 0, later ones are
``<task>.log.<offset>``.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Segment(NamedTuple):
    """A file of the log: its name, the offset of its first byte, and its size in bytes."""

    name: str
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Span(NamedTuple):
    """What to read next: ``skip`` bytes into the file ``name``; the byte there is ``offset``."""

    name: str
    skip: int
    offset: int


def segment_name(task: str, start: int) -> str:
    """Name the segment that starts at ``start``."""
    return f"{task}.log" if start == 0 else f"{task}.log.{start}"


def segment_start(task: str, name: str) -> int | None:
    """Return the offset that a file name tells, None where it is no segment of the task."""
    if name == f"{task}.log":
        return 0
    head, _, digits = name.rpartition(".")
    if head == f"{task}.log" and digits.isdecimal():
        return int(digits)
    return None


def locate(segments: Iterable[Segment], offset: int) -> Span | None:
    """Find the first stored byte at or after ``offset``; None if there is none yet."""
    for segment in sorted(segments, key=lambda item: item.start):
        if offset < segment.end:
            begin = max(offset, segment.start)
            return Span(name=segment.name, skip=begin - segment.start, offset=begin)
    return None


def end_of(segments: Iterable[Segment]) -> int:
    """Return the offset after the last byte written so far."""
    return max((segment.end for segment in segments), default=0)
