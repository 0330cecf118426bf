"""Gives the core its time: appends `ClockAdvanced` to the input log when a deadline is due.

Wall time only decides when to append; what the core sees is the log's timestamp, when the message
comes back. One is under way at a time.
"""

import asyncio
import logging

from broker import codec, subjects
from broker.bus import Bus
from broker.clock import Clock
from broker.errors import BusUnavailableError
from broker.schemas.operator import ClockAdvanced
from scheduler_svc.fold import Core
from scheduler_svc.position import Position

SUBJECT = subjects.scheduler_input("clock")
RETRY_MS = 1_000

_log = logging.getLogger(__name__)
_MESSAGE = codec.encode(ClockAdvanced())


class Timekeeper:
    """Watches the core's next deadline against wall time."""

    def __init__(self, bus: Bus, clock: Clock, core: Core, position: Position, epoch: int) -> None:
        self._bus = bus
        self._clock = clock
        self._core = core
        self._position = position
        self._epoch = epoch
        self._alarm_ms: int | None = None
        self._earlier = asyncio.Event()

    def look(self) -> None:
        """Look at the core's next deadline; call it after each batch of inputs."""
        deadline_ms = self._core.next_deadline_ms()
        if deadline_ms is not None and (self._alarm_ms is None or deadline_ms < self._alarm_ms):
            self._earlier.set()

    async def run(self) -> None:
        """Append what is due, until cancelled; an unavailable server is waited for."""
        while True:
            self._earlier.clear()
            self._alarm_ms = self._core.next_deadline_ms()
            if self._alarm_ms is not None and self._alarm_ms <= self._clock.now_ms():
                await self._advance(self._alarm_ms)
            else:
                await self._wait()

    async def _wait(self) -> None:
        """Wait for the alarm, or for an earlier deadline."""
        earlier = asyncio.create_task(self._earlier.wait())
        waits: list[asyncio.Task[object]] = [earlier]
        if self._alarm_ms is not None:
            left_ms = self._alarm_ms - self._clock.now_ms()
            waits.append(asyncio.create_task(self._clock.sleep_ms(left_ms)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _advance(self, deadline_ms: int) -> None:
        """Append until the core has acted on the deadline.

        The message id makes a retry harmless. A message that came back before its deadline (the
        server's clock is behind ours) needs another one, so another id.
        """
        attempt = 0
        while self._core.next_deadline_ms() == deadline_ms:
            message_id = f"clock/{deadline_ms}/{self._epoch}" + (f"/{attempt}" if attempt else "")
            try:
                stored = await self._bus.append(SUBJECT, _MESSAGE, message_id=message_id)
            except BusUnavailableError as error:
                _log.warning("cannot append the time, trying again", extra={"problem": str(error)})
                await self._clock.sleep_ms(RETRY_MS)
                continue
            await self._position.reached(stored.seq)
            if self._core.next_deadline_ms() == deadline_ms:
                attempt += 1
                left_ms = deadline_ms - self._core.now_ms
                _log.warning("the log's clock is behind ours", extra={"left_ms": left_ms})
                await self._clock.sleep_ms(left_ms if 0 < left_ms < RETRY_MS else RETRY_MS)
