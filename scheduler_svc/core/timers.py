"""Deadlines of the core: one timer per (job, kind), the earliest first."""

import heapq
from enum import StrEnum


class TimerKind(StrEnum):
    """What is due; the order of the names is the order within one job and instant."""

    BACKOFF = "backoff"
    DEMOTE = "demote"
    EXEMPT = "exempt"
    LAUNCH = "launch"
    PROMOTE = "promote"
    TIME_LIMIT = "time_limit"


class Timers:
    """A heap with lazy deletion: setting a timer again moves it, None clears it."""

    def __init__(self) -> None:
        self._due_ms: dict[tuple[int, TimerKind], int] = {}
        self._heap: list[tuple[int, int, TimerKind]] = []

    def set(self, job_id: int, kind: TimerKind, at_ms: int | None) -> None:
        if at_ms is None:
            self._due_ms.pop((job_id, kind), None)
        elif self._due_ms.get((job_id, kind)) != at_ms:
            self._due_ms[job_id, kind] = at_ms
            heapq.heappush(self._heap, (at_ms, job_id, kind))

    def clear(self, job_id: int) -> None:
        """Drop every timer of a job."""
        for kind in TimerKind:
            self._due_ms.pop((job_id, kind), None)

    def next_ms(self) -> int | None:
        """Return the time of the earliest timer."""
        while self._heap:
            at_ms, job_id, kind = self._heap[0]
            if self._due_ms.get((job_id, kind)) == at_ms:
                return at_ms
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ms: int) -> tuple[int, TimerKind] | None:
        """Remove and return (job id, kind) of the earliest timer due at ``now_ms``, or None.

        Timers of one instant come in order of submission.
        """
        at_ms = self.next_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, job_id, kind = heapq.heappop(self._heap)
        del self._due_ms[job_id, kind]
        return job_id, kind

    def entries(self) -> list[tuple[int, TimerKind, int]]:
        """Return all timers as (job id, kind, time), for a snapshot."""
        return sorted((job_id, kind, at_ms) for (job_id, kind), at_ms in self._due_ms.items())
