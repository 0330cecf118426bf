"""The input log read ahead: a bounded queue between the reader and the core."""

import asyncio
from contextlib import aclosing

from broker.bus import Bus, StoredMessage
from broker.topology import INPUT

READ_AHEAD = 256


class Inbox:
    """Inputs from ``from_seq`` on, in order, until it is closed."""

    def __init__(self, bus: Bus, from_seq: int) -> None:
        self._bus = bus
        self._from_seq = from_seq
        self._queue: asyncio.Queue[StoredMessage | None] = asyncio.Queue(READ_AHEAD)
        self._is_closed = False

    async def fill(self) -> None:
        """Read the log until cancelled."""
        async with aclosing(self._bus.read(INPUT, from_seq=self._from_seq)) as found:
            async for stored in found:
                await self._queue.put(stored)

    async def close_at(self, stop: asyncio.Event) -> None:
        """Let the inbox end after what is read when ``stop`` is set."""
        await stop.wait()
        await self._queue.put(None)

    async def next(self) -> StoredMessage | None:
        """Return the next input, waiting for it; None when closed."""
        return None if self._is_closed else self._checked(await self._queue.get())

    def next_waiting(self) -> StoredMessage | None:
        """Return the next input if one is read already."""
        if self._is_closed or self._queue.empty():
            return None
        return self._checked(self._queue.get_nowait())

    def _checked(self, stored: StoredMessage | None) -> StoredMessage | None:
        self._is_closed = stored is None
        return stored
