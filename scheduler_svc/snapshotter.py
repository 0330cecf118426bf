"""When a snapshot is taken, and what must be written before it counts."""

import asyncio
import logging

from broker.clock import Clock
from broker.errors import TiresiasError
from scheduler_svc.fold import Fold
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.snapshots import Snapshot, SnapshotStore
from scheduler_svc.views import ViewWriter

_log = logging.getLogger(__name__)


class Snapshotter:
    """Takes a snapshot every so many inputs, or so much time, and writes it beside the deciding.

    The views so far are written first: the core forgets a job that has ended, so a recovery from
    the snapshot could not write its last view again.
    """

    def __init__(
        self,
        store: SnapshotStore,
        views: ViewWriter,
        clock: Clock,
        metrics: SchedulerMetrics,
        *,
        saved_seq: int,
        every_inputs: int,
        every_ms: int,
    ) -> None:
        self._store = store
        self._views = views
        self._clock = clock
        self._metrics = metrics
        self._saved_seq = saved_seq
        self._taken_ms = clock.monotonic_ms()
        self._every_inputs = every_inputs
        self._every_ms = every_ms
        self._taken: asyncio.Queue[Snapshot] = asyncio.Queue(1)
        self._writing = asyncio.Lock()

    def is_due(self, fold: Fold) -> bool:
        """Whether it is time for a snapshot, and the one before is on its way."""
        new_inputs = fold.input_seq - self._saved_seq
        waited_ms = self._clock.monotonic_ms() - self._taken_ms
        is_time = new_inputs > 0 and waited_ms >= self._every_ms
        return (new_inputs >= self._every_inputs or is_time) and not self._taken.full()

    def take(self, fold: Fold, decision_seq: int) -> None:
        """Take a snapshot to be written; call it only when all decisions so far are stored."""
        self._taken.put_nowait(self._take(fold, decision_seq))

    async def run(self) -> None:
        """Write what is taken, until cancelled. A failure is logged: the older ones still hold."""
        while True:
            await self._save(await self._taken.get())

    async def save_last(self, fold: Fold, decision_seq: int) -> None:
        """Write a snapshot before the service ends, unless the newest one says it all."""
        if fold.input_seq > self._saved_seq:
            await self._save(self._take(fold, decision_seq))

    def _take(self, fold: Fold, decision_seq: int) -> Snapshot:
        self._taken_ms = self._clock.monotonic_ms()
        self._saved_seq = fold.input_seq
        return Snapshot(
            input_seq=fold.input_seq,
            input_at_ms=fold.input_at_ms,
            decision_seq=decision_seq,
            core=fold.core.snapshot(),
        )

    async def _save(self, snapshot: Snapshot) -> None:
        try:
            async with self._writing:
                await self._views.flush()
                await self._store.save(snapshot)
        except (OSError, TiresiasError) as error:
            self._metrics.snapshot_failures.inc()
            _log.error("snapshot not written", extra={"problem": str(error)})
            return
        self._metrics.snapshot_saved()
        _log.info("snapshot written", extra={"input": snapshot.input_seq})
