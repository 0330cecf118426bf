"""Reading streams: pipelined pull requests with heartbeats, reopened at any doubt.

nats-py's own fetch loses requests across reconnects, and its ordered consumer loses messages
silently, hence this loop. `OrderedReader` checks consumer sequences, so that a gap is noticed and
read again.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from broker.bus import StoredMessage
from broker.errors import BusError, BusUnavailableError
from broker.nats_api import (
    MESSAGE_ID_HEADER,
    NO_STREAM,
    ApiRefusedError,
    ConsumerInfo,
    JetStreamApi,
    is_deletion,
)
from broker.nats_connection import NatsConnection, NatsSubscription, Reply, status_of
from broker.stored import Record

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 0.5
_SILENCE_S = 2.5 * _HEARTBEAT_S
_EXPIRES_S = 5.0
_REOPEN_PAUSE_S = 0.25
_READ_BATCH = 512
_NS = 1_000_000_000
_ALIVE = "100"
_REQUEST_OVER = ("404", "408")
_PLAIN_ACK_TOKENS = 9

Open = Callable[[], Awaitable[ConsumerInfo]]


class PullLoop:
    """Keeps requests outstanding at one consumer; `next` yields messages in order of arrival.

    At the start, after a reconnect and when the server is silent the consumer is opened (created
    or looked up) again, and `next` returns what the server said of it.
    """

    def __init__(
        self, connection: NatsConnection, stream: str, open_consumer: Open, batch: int
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._open_consumer = open_consumer
        self._batch = batch
        self._outstanding = 0
        self._subject = ""
        self._inbox = ""
        self._heard = 0.0
        self._arrived: asyncio.Queue[Reply | None] = asyncio.Queue()
        self._subscription: NatsSubscription | None = None
        self._remove_hook: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        self._remove_hook = self._connection.on_reconnect(self._on_reconnect)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove_hook()
        await self.reopen()

    async def reopen(self) -> None:
        """Drop what has arrived, and open the consumer again at the next call of `next`."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    async def next(self) -> Reply | ConsumerInfo:
        """Return the next message, or the consumer's state when it was opened (again)."""
        while self._subscription is not None:
            message = await self._next_arrival()
            if message is None:
                await self.reopen()
                break
            status = status_of(message)
            if not status:
                self._outstanding -= 1
                await self._ask()
                return message
            if status in _REQUEST_OVER:
                left = (message.headers or {}).get("Nats-Pending-Messages", self._batch)
                self._outstanding -= int(left)
                await self._ask()
            else:
                await self.reopen()
                await asyncio.sleep(_REOPEN_PAUSE_S)
        return await self._open()

    async def _open(self) -> ConsumerInfo:
        """Open the consumer, start over with an own inbox, and ask for messages."""
        consumer = await self._open_consumer()
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer.name}"
        self._inbox = self._connection.new_inbox()
        self._arrived = asyncio.Queue()
        self._heard = time.monotonic()
        self._outstanding = 0
        self._subscription = await self._connection.subscribe(self._inbox, self._on_message)
        await self._ask()
        return consumer

    async def _ask(self) -> None:
        """Top up the outstanding requests when half of the batch has come."""
        self._outstanding = max(0, self._outstanding)
        wanted = self._batch - self._outstanding
        if wanted * 2 < self._batch:
            return
        body = {
            "batch": wanted,
            "expires": int(_EXPIRES_S * _NS),
            "idle_heartbeat": int(_HEARTBEAT_S * _NS),
        }
        if await self._connection.publish(self._subject, msgspec.json.encode(body), self._inbox):
            self._outstanding += wanted

    async def _next_arrival(self) -> Reply | None:
        """Return what came; None after a reconnect, or when the server is silent."""
        while self._arrived.empty():
            left_s = self._heard + _SILENCE_S - time.monotonic()
            if left_s <= 0:
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    return await self._arrived.get()
        return self._arrived.get_nowait()

    async def _on_message(self, message: Reply) -> None:
        self._heard = time.monotonic()
        if status_of(message) != _ALIVE:
            self._arrived.put_nowait(message)

    async def _on_reconnect(self) -> None:
        """Forget what came before: a restarted server may not know that it sent it."""
        while not self._arrived.empty():
            self._arrived.get_nowait()
        self._arrived.put_nowait(None)


class AckFields(msgspec.Struct, frozen=True):
    """What the reply subject of a JetStream message tells."""

    stream_seq: int
    consumer_seq: int
    at_ms: int
    num_pending: int


def ack_fields(reply: str) -> AckFields:
    """Read ``$JS.ACK.[domain.account.]stream.consumer.deliveries.seq.seq.time.pending[.token]``."""
    tokens = reply.split(".")
    first = 5 if len(tokens) == _PLAIN_ACK_TOKENS else 7
    stream_seq, consumer_seq, at_ns, pending = (int(token) for token in tokens[first : first + 4])
    return AckFields(stream_seq, consumer_seq, at_ns // 1_000_000, pending)


def record_of(message: Reply, fields: AckFields) -> Record:
    """Read a pulled message."""
    headers = message.headers or {}
    message_id = headers.get(MESSAGE_ID_HEADER, "")
    stored = StoredMessage(
        message.subject, message.data, fields.stream_seq, fields.at_ms, message_id
    )
    return Record(stored, is_deletion(headers))


class OrderedReader:
    """Reads a stream in order through throw-away consumers, from a sequence or from last values."""

    def __init__(
        self,
        connection: NatsConnection,
        api: JetStreamApi,
        stream: str,
        subject: str,
        from_seq: int | None,
    ) -> None:
        self._connection = connection
        self._api = api
        self._stream = stream
        self._subject = subject or ">"
        self._from_seq = from_seq
        self._delivered = 0
        self._consumer = ""
        self._is_first_opening = True

    async def records(self) -> AsyncGenerator[Record | None]:
        """Yield the messages for ever, and None once: all that was there at the start is read.

        With ``from_seq`` None, begin with the newest message of each subject.
        """
        has_caught_up = False
        async with PullLoop(self._connection, self._stream, self._open, _READ_BATCH) as pulled:
            try:
                while True:
                    item = await pulled.next()
                    if isinstance(item, ConsumerInfo):
                        num_pending = item.num_pending
                    else:
                        fields = ack_fields(item.reply)
                        if fields.consumer_seq != self._delivered + 1:
                            await pulled.reopen()
                            continue
                        self._delivered += 1
                        self._from_seq = fields.stream_seq + 1
                        num_pending = fields.num_pending
                        yield record_of(item, fields)
                    if num_pending == 0 and not has_caught_up:
                        has_caught_up = True
                        yield None
            finally:
                await self._forget_consumer()

    async def _open(self) -> ConsumerInfo:
        while True:
            try:
                return await self._open_once()
            except BusUnavailableError as error:
                logger.info("cannot read %s yet: %s", self._stream, error)
            except ApiRefusedError as error:
                if self._is_first_opening or error.err_code != NO_STREAM:
                    raise
                logger.warning("stream %s is missing: waiting for it", self._stream)
                await asyncio.sleep(_REOPEN_PAUSE_S)

    async def _open_once(self) -> ConsumerInfo:
        """Create a consumer for what is not read yet, if the stream still has what was read."""
        if self._from_seq is not None and not self._is_first_opening:
            last_seq = (await self._api.stream_state(self._stream)).last_seq
            if last_seq < self._from_seq - 1:
                raise StreamWentBackError(self._stream, self._from_seq - 1, last_seq)
        await self._forget_consumer()
        name = f"reader_{uuid.uuid4().hex}"
        consumer = await self._api.create_consumer(self._stream, self._config(name))
        self._consumer = name
        self._delivered = 0
        self._is_first_opening = False
        return consumer

    def _config(self, name: str) -> dict[str, Any]:
        config: dict[str, Any] = {
            "name": name,
            "filter_subject": self._subject,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 30 * _NS,
        }
        if self._from_seq is None:
            return {**config, "deliver_policy": "last_per_subject"}
        return {
            **config,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(1, self._from_seq),
        }

    async def _forget_consumer(self) -> None:
        if self._consumer:
            with contextlib.suppress(BusError):
                await self._api.forget_consumer(self._stream, self._consumer)


class StreamWentBackError(BusError):
    """The server lost messages that were already read."""

    def __init__(self, stream: str, read_seq: int, last_seq: int) -> None:
        super().__init__(f"stream {stream} ends at {last_seq}, but was already read to {read_seq}")
