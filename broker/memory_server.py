"""What the buses in memory share: streams, objects and core subscriptions."""

import asyncio
import itertools
import logging
from typing import Protocol

from broker.bus import BusMessage, Handler
from broker.clock import Clock
from broker.errors import BusError
from broker.memory_stream import MemoryStream, subject_matches
from broker.topology import definitions

logger = logging.getLogger(__name__)


class Reachable(Protocol):
    """A bus as its subscriptions see it."""

    @property
    def is_connected(self) -> bool: ...


class MemoryServer:
    """Streams, buckets and subscriptions shared by the buses of one test or simulation.

    It starts with the streams of the topology.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.streams = {
            definition.name: MemoryStream(definition.config()) for definition in definitions()
        }
        self.objects: dict[tuple[str, str], bytes] = {}
        self._subscriptions: list[MemorySubscription] = []
        self._inbox_numbers = itertools.count(1)

    def stream(self, name: str) -> MemoryStream:
        """Return a stream by name; `BusError` if it does not exist."""
        try:
            return self.streams[name]
        except KeyError:
            raise BusError(f"no stream {name!r} on the server") from None

    def capturing(self, subject: str) -> MemoryStream | None:
        """Return the stream that stores messages on a subject."""
        return next((s for s in self.streams.values() if s.captures(subject)), None)

    def new_inbox(self) -> str:
        """Return a subject for replies that nobody else uses."""
        return f"_INBOX.{next(self._inbox_numbers)}"

    def add(self, subscription: "MemorySubscription") -> None:
        """Deliver matching messages to a subscription from now on."""
        self._subscriptions.append(subscription)

    def remove(self, subscription: "MemorySubscription") -> None:
        """Deliver nothing more to a subscription."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def deliver(self, message: BusMessage) -> int:
        """Give a core message to every subscriber; return how many there were."""
        takers = [s for s in self._subscriptions if s.takes(message.subject)]
        for subscription in takers:
            subscription.offer(message)
        return len(takers)


class MemorySubscription:
    """One subscription and the task that hands its messages to the handler, one at a time."""

    def __init__(
        self, bus: Reachable, server: MemoryServer, pattern: str, handler: Handler
    ) -> None:
        self._bus = bus
        self._server = server
        self._pattern = pattern
        self._handler = handler
        self._queue: asyncio.Queue[BusMessage] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(), name=f"subscription {pattern}")

    def takes(self, subject: str) -> bool:
        """Tell whether a message on a subject reaches this subscription now."""
        return self._bus.is_connected and subject_matches(self._pattern, subject)

    def offer(self, message: BusMessage) -> None:
        """Queue a message for the handler."""
        self._queue.put_nowait(message)

    async def unsubscribe(self) -> None:
        self._server.remove(self)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            message = await self._queue.get()
            try:
                await self._handler(message)
            except Exception:
                logger.exception("handler of %s failed", self._pattern)
