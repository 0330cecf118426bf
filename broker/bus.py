"""The bus as services see it: one protocol, two implementations (`nats_bus`, `memory_bus`).

Core messages are at most once. Streams are durable, totally ordered and timestamped by the
server. Every call is bounded in time; `BusUnavailableError` means *unknown*, never *not stored*.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol

import msgspec


class BusMessage(msgspec.Struct, frozen=True):
    """A core message. ``respond`` answers a request; it does nothing when none is wanted."""

    subject: str
    data: bytes
    reply: str = ""


class StoredMessage(msgspec.Struct, frozen=True):
    """A message of a stream: its sequence, and the server's timestamp in milliseconds."""

    subject: str
    data: bytes
    seq: int
    at_ms: int
    message_id: str = ""


class Stored(msgspec.Struct, frozen=True):
    """The server's word that a message is in a stream; ``duplicate`` if it was there before."""

    seq: int
    duplicate: bool = False


class KvEntry(msgspec.Struct, frozen=True):
    """A key's value and revision; ``data`` is None where the key was deleted."""

    key: str
    data: bytes | None
    revision: int


class StreamState(msgspec.Struct, frozen=True):
    """First and last sequence of a stream; an empty one has ``first_seq == last_seq + 1``."""

    first_seq: int
    last_seq: int
    bytes: int = 0


Handler = Callable[[BusMessage], Awaitable[None]]


class Subscription(Protocol):
    """A subject that is listened to, until `unsubscribe`."""

    async def unsubscribe(self) -> None: ...


class Delivery(Protocol):
    """A message of a durable consumer: acknowledge it after its effect."""

    @property
    def message(self) -> StoredMessage: ...

    async def ack(self) -> None: ...

    async def in_progress(self) -> None:
        """Tell the server that work goes on, so that it does not redeliver."""
        ...


class Bus(Protocol):
    """Everything a service may do on the wire."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def disconnected_since_ms(self) -> int | None:
        """Monotonic time of the loss of the connection, None while connected."""
        ...

    @property
    def generation(self) -> int:
        """Grows with each reconnect: the server may have forgotten what it had not on disk."""
        ...

    async def publish(self, subject: str, data: bytes) -> None:
        """Send a core message now; dropped silently while disconnected."""
        ...

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Call ``handler`` for each core message, one at a time. Its errors are logged."""
        ...

    async def request(self, subject: str, data: bytes, *, timeout_ms: int = 5_000) -> bytes:
        """Ask one responder; raises `NoRespondersError` or `BusUnavailableError`."""
        ...

    async def respond(self, message: BusMessage, data: bytes) -> None: ...

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str = "",
        epoch: int | None = None,
        timeout_ms: int = 10_000,
    ) -> Stored:
        """Append to the stream that captures ``subject``.

        Retries with the same id until the time is out. With ``epoch``, the server refuses it
        (`FencedError`) under a newer leader.
        """
        ...

    async def claim_leadership(self, data: bytes, *, message_id: str) -> int:
        """Append a leader record after the one read last; return its sequence, the epoch.

        Raises `FencedError` if somebody else claimed meanwhile.
        """
        ...

    def read(
        self, stream: str, *, from_seq: int, subject: str = ""
    ) -> AsyncGenerator[StoredMessage]:
        """Yield the messages of a stream from ``from_seq`` on, in order and without a gap.

        It never ends and survives reconnects; always close it (``contextlib.aclosing``).
        """
        ...

    def read_until(
        self, stream: str, *, from_seq: int, last_seq: int, subject: str = ""
    ) -> AsyncGenerator[StoredMessage]:
        """Like `read`, but ends after the messages up to ``last_seq``."""
        ...

    def consume(self, stream: str, *, durable: str, subject: str) -> AsyncGenerator[Delivery]:
        """Yield the messages for a durable consumer (created if missing, explicit ack)."""
        ...

    async def last_message(self, stream: str, subject: str) -> StoredMessage | None: ...

    async def last_messages(self, stream: str, subject: str) -> list[StoredMessage]:
        """The newest message of each subject that matches."""
        ...

    async def stream_state(self, stream: str) -> StreamState: ...

    async def kv_get(self, bucket: str, key: str) -> KvEntry | None: ...

    async def kv_put(self, bucket: str, key: str, data: bytes) -> int: ...

    async def kv_compare_and_set(self, bucket: str, key: str, data: bytes, revision: int) -> int:
        """Write if the key is still at ``revision`` (0: not there); else `WrongRevisionError`."""
        ...

    async def kv_delete(self, bucket: str, key: str) -> None: ...

    async def kv_all(self, bucket: str) -> Mapping[str, KvEntry]:
        """Every live key of a bucket."""
        ...

    def kv_watch(self, bucket: str, key: str = ">") -> AsyncGenerator[KvEntry | None]:
        """Yield the present entries, then None once, then each change, across reconnects."""
        ...

    async def object_put(self, bucket: str, name: str, data: bytes) -> None: ...

    async def object_get(self, bucket: str, name: str) -> bytes | None: ...

    async def barrier(self) -> None:
        """Return when all that was sent before has reached the server."""
        ...

    async def close(self) -> None: ...
