"""How the tasks of a gang come to the same decision at the same step.

Each rank brings what it knows (I was asked to stop, my writer is busy); the sums over all ranks
are the decision, so every rank reads the same one. A sum costs a collective operation, so ranks
hold one only every few steps, about ten times a second; rank 0 measures and sets the distance.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SumOverRanks = Callable[[Sequence[float]], Sequence[float]]
"""Adds a short list of numbers element by element over all ranks; all ranks call it together."""

SECONDS_BETWEEN = 0.1
MAX_BOUNDARIES_BETWEEN = 100


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do at this step boundary."""

    should_stop: bool = False
    should_save: bool = False


class Agreement:
    """The common decisions of one gang; every rank must call `decide` at every boundary."""

    def __init__(
        self,
        sum_over_ranks: SumOverRanks,
        *,
        rank: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sum_over_ranks = sum_over_ranks
        self._is_first = rank == 0
        self._clock = clock
        self._distance = 1
        self._until_next = 1
        self._last_s = clock()

    def decide(
        self, *, stop: bool, save_due: bool, is_busy: bool, steps_to_save: int | None
    ) -> Decision:
        """Return this boundary's decision; between two sums it is to go on.

        Stop if any rank was asked to. Save if rank 0's clock or step count says so
        (``steps_to_save``: how many steps until that) and no rank's writer is busy.
        """
        self._until_next -= 1
        if self._until_next > 0:
            return Decision()
        wanted = self._next_distance(steps_to_save) if self._is_first else 0
        due = self._is_first and save_due
        stops, dues, busy, distance = self._sum_over_ranks(
            [float(stop), float(due), float(is_busy), float(wanted)]
        )
        self._distance = self._until_next = max(1, round(distance))
        return Decision(should_stop=stops > 0, should_save=dues > 0 and busy == 0)

    def _next_distance(self, steps_to_save: int | None) -> int:
        now_s = self._clock()
        boundary_s = (now_s - self._last_s) / self._distance
        self._last_s = now_s
        affordable = int(SECONDS_BETWEEN / boundary_s) if boundary_s > 0 else 1
        distance = max(1, min(affordable, MAX_BOUNDARIES_BETWEEN))
        return distance if steps_to_save is None else min(distance, max(1, steps_to_save))
