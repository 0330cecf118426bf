"""One term of leadership: inputs in, decisions stored, then everything that may follow.

The order is fixed: core, append all outputs, wait until they are stored, record the position, and
only then views and deadlines. The core goes on with the next inputs while decisions are being
stored; a snapshot waits until nothing is under way. The position lives in memory: a snapshot makes
it durable, and what was decided after it is found again in the decision log.
"""

import asyncio
import logging
import time

import msgspec

from broker import codec, subjects
from broker.bus import Bus, StoredMessage
from broker.clock import Clock
from broker.errors import BusError, BusUnavailableError
from broker.runtime import Supervisor
from broker.schemas.base import Output
from broker.schemas.operator import SettingsChanged
from broker.topology import INPUT
from scheduler_svc import dead_letters
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.dead_letters import DeadLetter
from scheduler_svc.decision_log import WINDOW, DecisionLog
from scheduler_svc.explain import Explainer
from scheduler_svc.fold import View
from scheduler_svc.inbox import Inbox
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.node_watch import NodeWatch
from scheduler_svc.position import Position
from scheduler_svc.recovery import Recovered
from scheduler_svc.snapshots import SnapshotStore
from scheduler_svc.snapshotter import Snapshotter
from scheduler_svc.timekeeper import Timekeeper
from scheduler_svc.views import ViewWriter

LONGEST_BATCH_S = 0.005
"""The core yields to the loop at the latest after this long, whatever waits."""
BATCHES_AHEAD = 8
"""The core is at most so many batches ahead of what is stored."""
LAG_EVERY_MS = 5_000
PUT_ASIDE_S = 10.0

_log = logging.getLogger(__name__)


class Batch(msgspec.Struct):
    """Inputs handled together, whose outputs are stored together."""

    input_seq: int
    """The last of them."""
    outputs: list[Output] = []
    views: list[View] = []
    unreadable: list[DeadLetter] = []
    input_times_ms: list[int] = []


class Term:
    """Leads from a recovered state until it is told to stop, or until an append fails."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        config: SchedulerConfig,
        recovered: Recovered,
        *,
        store: SnapshotStore,
        metrics: SchedulerMetrics,
    ) -> None:
        fold, epoch = recovered.fold, recovered.epoch
        self._bus = bus
        self._clock = clock
        self._config = config
        self._metrics = metrics
        self._recovered = recovered
        self._fold = fold
        self._decisions = DecisionLog(bus, epoch)
        self._position = Position(fold.input_seq)
        self._handled: asyncio.Queue[Batch] = asyncio.Queue(BATCHES_AHEAD)
        self._inbox = Inbox(bus, fold.input_seq + 1)
        self._views = ViewWriter(bus, clock)
        self._timekeeper = Timekeeper(bus, clock, fold.core, self._position, epoch)
        self._explainer = Explainer(bus, clock, fold.core)
        self._watch = NodeWatch(
            bus,
            clock,
            suspect_after_ms=config.suspect_after_ms,
            lost_after_ms=config.lost_after_ms,
            epoch=epoch,
        )
        self._snapshotter = Snapshotter(
            store,
            self._views,
            clock,
            metrics,
            saved_seq=recovered.snapshot_seq,
            every_inputs=config.snapshot_every_inputs,
            every_ms=config.snapshot_every_ms,
        )

    async def lead(self, stop: asyncio.Event) -> None:
        """Finish what an earlier leader left, then lead until ``stop`` is set.

        Raises `FencedError` or another `BusError` when an append fails: leadership is over, and the
        next recovery finds what is stored. Raises `CoreFailedError` when the core does: the next
        recovery finds out whether the input or the state is to blame.
        """
        batch = Batch(
            input_seq=self._fold.input_seq,
            outputs=self._recovered.missing,
            views=self._recovered.views,
            unreadable=self._recovered.unreadable,
        )
        await self._store(batch)
        await self._change_settings()
        async with Supervisor() as tasks:
            tasks.start("storing", self._store_handled())
            tasks.start("views", self._views.run())
            tasks.start("views again", self._views.heal())
            tasks.start("inbox", self._inbox.fill())
            tasks.start("stop", self._inbox.close_at(stop))
            tasks.start("timekeeper", self._timekeeper.run())
            tasks.start("node watch", self._watch.run())
            tasks.start("snapshots", self._snapshotter.run())
            tasks.start("position lag", self._measure_lag())
            await self._serve()

    async def _serve(self) -> None:
        """Answer and decide until the inbox is closed, then put everything aside."""
        subscriptions = [await self._watch.listen(), await self._explainer.listen()]
        try:
            await self._bus.publish(subjects.INVENTORY, b"")
            _log.info(
                "leading", extra={"epoch": self._decisions.epoch, "input": self._position.seq}
            )
            while (stored := await self._inbox.next()) is not None:
                await self._handled.put(self._handle_batch(stored))
                if self._snapshotter.is_due(self._fold):
                    await self._handled.join()
                    self._snapshotter.take(self._fold, self._decisions.last_seq)
            await self._handled.join()
            await self._put_aside()
        finally:
            for subscription in subscriptions:
                await subscription.unsubscribe()

    async def _change_settings(self) -> None:
        """Append the settings of the configuration where the log's are others."""
        present = self._fold.core.settings
        wanted = self._config.settings_for(present)
        if wanted != present:
            await self._bus.append(
                subjects.scheduler_input("settings"),
                codec.encode(SettingsChanged(settings=wanted)),
                message_id=f"settings/{self._decisions.epoch}",
            )

    def _handle_batch(self, first: StoredMessage) -> Batch:
        """Handle an input and those that wait behind it, one by one."""
        batch = Batch(input_seq=first.seq)
        began_s = now_s = time.perf_counter()
        stored: StoredMessage | None = first
        while stored is not None:
            step = self._fold.step(stored)
            before_s, now_s = now_s, time.perf_counter()
            self._metrics.handled(step, now_s - before_s)
            batch.input_times_ms.append(stored.at_ms)
            batch.outputs += step.outputs
            batch.views += step.views
            batch.unreadable += [step.unreadable] if step.unreadable else []
            batch.input_seq = stored.seq
            if len(batch.outputs) >= WINDOW or now_s - began_s > LONGEST_BATCH_S:
                break
            stored = self._inbox.next_waiting()
        return batch

    async def _store_handled(self) -> None:
        """Store batches one after the other, until cancelled."""
        while True:
            await self._store(await self._handled.get())
            self._handled.task_done()

    async def _store(self, batch: Batch) -> None:
        """Store a batch's outputs, record the position, and let follow what may."""
        try:
            await self._decisions.append(batch.outputs)
            for letter in batch.unreadable:
                await self._bury(letter)
        except BusError as error:
            self._metrics.step_downs.labels(type(error).__name__).inc()
            _log.error("stepping down", extra={"epoch": self._decisions.epoch, "why": str(error)})
            raise
        self._position.record(batch.input_seq)
        self._metrics.unsayable.set(self._decisions.unsayable)
        self._metrics.decided(batch.outputs, batch.input_times_ms)
        self._metrics.show(batch.views)
        self._views.put(batch.views)
        self._watch.look(batch.views)
        self._timekeeper.look()

    async def _bury(self, letter: DeadLetter) -> None:
        self._metrics.dead_letters.inc()
        _log.warning(
            "input put aside", extra={"input": letter.input_seq, "problem": letter.error[:500]}
        )
        await dead_letters.bury(self._bus, dead_letters.UNREADABLE, letter)

    async def _put_aside(self) -> None:
        """Write the last views and a snapshot; a recovery makes good what is not written."""
        try:
            async with asyncio.timeout(PUT_ASIDE_S):
                await self._views.flush()
                await self._snapshotter.save_last(self._fold, self._decisions.last_seq)
        except TimeoutError:
            _log.warning("stopped before the last views were written")

    async def _measure_lag(self) -> None:
        while True:
            await self._clock.sleep_ms(LAG_EVERY_MS)
            try:
                state = await self._bus.stream_state(INPUT)
            except BusUnavailableError:
                continue
            self._metrics.position_lag.set(max(0, state.last_seq - self._position.seq))
