"""Inputs on their way to the log: in order, retried until stored, the newest of each key wins.

While the bus is away nothing piles up: a key (the join, the health of one GPU, the saves of one
run) has one entry, and the number of keys is bounded.
"""

import asyncio
import logging

import msgspec

from broker import subjects
from broker.bus import Bus
from broker.clock import Clock
from broker.codec import encode
from broker.errors import BusError, BusUnavailableError
from broker.schemas.base import Input, tag_of

logger = logging.getLogger(__name__)

MAX_KEYS = 4096
FIRST_RETRY_MS = 250
MAX_RETRY_MS = 10_000


class Entry(msgspec.Struct, frozen=True, eq=False):
    """One input; a retry carries the same id, so it is stored once."""

    message: Input
    message_id: str


class Outbox:
    """The inputs of one node."""

    def __init__(self, bus: Bus, clock: Clock, node: str) -> None:
        self._bus = bus
        self._clock = clock
        self._node = node
        self._entries: dict[str, Entry] = {}
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, key: str, message: Input, message_id: str) -> None:
        """Send ``message`` soon, instead of what waits under ``key``."""
        if key not in self._entries and len(self._entries) >= MAX_KEYS:
            logger.error("input dropped: %d are waiting", MAX_KEYS, extra={"key": key})
            return
        self._entries[key] = Entry(message, message_id)
        self._filled.set()
        self._empty.clear()

    async def run(self) -> None:
        """Send for ever."""
        retry_ms = FIRST_RETRY_MS
        while True:
            await self._filled.wait()
            key, entry = next(iter(self._entries.items()))
            if await self._is_settled(entry):
                retry_ms = FIRST_RETRY_MS
                self._done(key, entry)
            else:
                await self._clock.sleep_ms(retry_ms)
                retry_ms = min(2 * retry_ms, MAX_RETRY_MS)

    async def drained(self) -> None:
        """Return when nothing waits."""
        await self._empty.wait()

    async def _is_settled(self, entry: Entry) -> bool:
        """Append; False if nobody knows whether it was stored. A refusal is final, and logged."""
        kind = tag_of(type(entry.message)).partition(".")[2]
        subject = subjects.node_input(self._node, kind)
        try:
            await self._bus.append(subject, encode(entry.message), message_id=entry.message_id)
        except BusUnavailableError as error:
            logger.warning("input waits for the bus: %s", error, extra={"kind": kind})
            return False
        except BusError as error:
            logger.error("input refused: %s", error, extra={"kind": kind})  # noqa: TRY400 - expected
        return True

    def _done(self, key: str, entry: Entry) -> None:
        if self._entries[key] is entry:
            del self._entries[key]
        if not self._entries:
            self._filled.clear()
            self._empty.set()
