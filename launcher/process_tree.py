"""Processes of this machine as /proc shows them; standard library only, for the supervisor.

A zombie is gone: it holds no memory, no device and no file.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator

_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
_TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Make this process the new parent of every orphaned descendant."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def boot_ms() -> int:
    """Return the time since the machine's start, by which processes are dated."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _read(pid: int, name: str) -> bytes:
    """Return a file of a process; empty if it is gone or not ours to read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.readall() or b""
    except OSError:
        return b""


def _stat(pid: int) -> tuple[int, int, int] | None:
    """Return (parent, group, start in ticks since boot) of a living process, else None."""
    state, *numbers = _read(pid, "stat").rpartition(b") ")[2].split(b" ", 20)
    if not numbers or state in (b"Z", b"X"):
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[18])


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    return _stat(pid) is not None


def was_there(pid: int, at_boot_ms: int) -> bool:
    """Whether the living process is as old as that, not a later one of the same number."""
    stat = _stat(pid)
    return stat is not None and stat[2] * _TICK_MS <= at_boot_ms


def group_of(pid: int) -> int | None:
    """Return the process group, None if the process is gone."""
    stat = _stat(pid)
    return None if stat is None else stat[1]


def descendants(root: int) -> list[int]:
    """Return the living processes below ``root``, also those in sessions of their own.

    They stay below a subreaper whatever they do: an orphan's new parent is its nearest subreaper.
    """
    children: dict[int, list[int]] = {}
    for pid in _pids():
        if stat := _stat(pid):
            children.setdefault(stat[0], []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def carrying(entry: str) -> list[int]:
    """Return the living processes that were started with ``NAME=value`` in their environment."""
    wanted = entry.encode()
    return [
        pid for pid in _pids() if wanted in _read(pid, "environ").split(b"\0") and is_alive(pid)
    ]


def signal_all(pids: Iterable[int], signal_number: signal.Signals) -> None:
    """Signal each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except (ProcessLookupError, PermissionError):
            continue
