"""Listens to heartbeats and appends what `liveness` makes of them to the input log."""

import logging

from broker import codec, subjects
from broker.bus import Bus, BusMessage, Subscription
from broker.clock import Clock
from broker.errors import BusUnavailableError, CodecError
from broker.schemas.base import tag_of
from broker.schemas.node import Heartbeat
from broker.schemas.views import NodeView
from scheduler_svc.fold import View
from scheduler_svc.liveness import Liveness

CHECKS_PER_SUSPICION = 6
ASK_EVERY_MS = 5_000

_log = logging.getLogger(__name__)


class NodeWatch:
    """The shell around `Liveness`: subscription, tick and appends."""

    def __init__(
        self, bus: Bus, clock: Clock, *, suspect_after_ms: int, lost_after_ms: int, epoch: int
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._tick_ms = max(1, suspect_after_ms // CHECKS_PER_SUSPICION)
        self._liveness = Liveness(
            suspect_after_ms=suspect_after_ms, lost_after_ms=lost_after_ms, epoch=epoch
        )
        self._was_holding = False
        self._without_launcher: set[str] = set()
        self._asked_ms = clock.monotonic_ms()

    async def listen(self) -> Subscription:
        """Start to take heartbeats."""
        return await self._bus.subscribe(subjects.HEARTBEATS_ALL, self._take)

    def look(self, views: list[View]) -> None:
        """Take over the nodes among changed views."""
        now_ms = self._clock.monotonic_ms()
        for view in views:
            if isinstance(view, NodeView):
                self._liveness.node_changed(view.node, view.state, now_ms)
                is_missing = view.state == "up" and not view.has_launcher
                (self._without_launcher.add if is_missing else self._without_launcher.discard)(
                    view.node
                )

    async def run(self) -> None:
        """Judge at each tick, until cancelled."""
        while True:
            await self._clock.sleep_ms(self._tick_ms)
            try:
                await self._judge()
            except BusUnavailableError as error:
                _log.warning("cannot append a verdict, trying again", extra={"problem": str(error)})

    async def _take(self, message: BusMessage) -> None:
        try:
            heartbeat = codec.decode(Heartbeat, message.data, message.subject)
        except CodecError as error:
            _log.warning("heartbeat skipped", extra={"problem": str(error)})
            return
        if subjects.tokens_after_prefix(message.subject) != ["hb", heartbeat.node]:
            _log.warning("heartbeat of another node skipped", extra={"subject": message.subject})
        elif not self._liveness.heard(heartbeat, self._clock.monotonic_ms()):
            _log.debug("heartbeat of a node that has not joined", extra={"node": heartbeat.node})

    async def _judge(self) -> None:
        verdicts = self._liveness.check(
            self._clock.monotonic_ms(), is_connected=self._bus.is_connected
        )
        if self._liveness.is_holding != self._was_holding:
            self._was_holding = self._liveness.is_holding
            _log.warning(
                "most nodes or our own connection are silent: judging nobody"
                if self._was_holding
                else "judging nodes again"
            )
        for verdict in verdicts:
            kind = tag_of(type(verdict.message)).replace(".", "_")
            await self._bus.append(
                subjects.scheduler_input(kind),
                codec.encode(verdict.message),
                message_id=verdict.message_id,
            )
        await self._ask_launchers()

    async def _ask_launchers(self) -> None:
        """A launcher that was given up may be there all the same, and does not know it."""
        now_ms = self._clock.monotonic_ms()
        if self._without_launcher and now_ms - self._asked_ms >= ASK_EVERY_MS:
            self._asked_ms = now_ms
            await self._bus.publish(subjects.INVENTORY, b"")
