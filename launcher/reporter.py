"""Tells the scheduler what happened to runs: each report once, in order within a run.

The journal's book is the outbox: a report stays there until the input log has it, across restarts
and outages. Its message id makes telling it twice the same as once.
"""

import logging

import msgspec

from broker import subjects
from broker.bus import Bus
from broker.clock import Clock
from broker.errors import BusError
from broker.runtime import Supervisor
from launcher.core.run_state import Report, ReportDelivered, report_kind
from launcher.journal import Journal

logger = logging.getLogger(__name__)

_FIRST_PAUSE_MS = 200
_LONGEST_PAUSE_MS = 5_000


class Reporter:
    """One task per run that has something to tell."""

    def __init__(
        self, *, node: str, bus: Bus, clock: Clock, journal: Journal, tasks: Supervisor
    ) -> None:
        self._node = node
        self._bus = bus
        self._clock = clock
        self._journal = journal
        self._tasks = tasks
        self._busy: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether everything has been told."""
        return not self._journal.book.undelivered

    def post(self, run_id: str) -> None:
        """Tell what the book holds for the run; returns at once."""
        if run_id not in self._busy:
            self._busy.add(run_id)
            self._tasks.start(f"report {run_id}", self._tell_all(run_id))

    def post_all(self) -> None:
        for run_id in list(self._journal.book.undelivered):
            self.post(run_id)

    async def _tell_all(self, run_id: str) -> None:
        try:
            while reports := self._journal.book.undelivered.get(run_id):
                await self._tell(reports[0])
                self._journal.record(ReportDelivered(run_id=run_id))
        finally:
            self._busy.discard(run_id)

    async def _tell(self, report: Report) -> None:
        kind = report_kind(report)
        subject = subjects.node_input(self._node, kind)
        message_id = f"{report.run_id}/{self._node}/{kind}"
        pause_ms = _FIRST_PAUSE_MS
        while True:
            try:
                await self._bus.append(subject, msgspec.json.encode(report), message_id=message_id)
            except BusError as error:
                logger.warning("report %s not stored, trying again: %s", message_id, error)
            else:
                return
            await self._clock.sleep_ms(pause_ms)
            pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)
