"""The bus over NATS JetStream: see `broker.bus.Bus` for the promises."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from broker import subjects
from broker.bus import BusMessage, Handler, KvEntry, Stored, StoredMessage, StreamState
from broker.clock import SystemClock
from broker.errors import BusError, FencedError, WrongRevisionError
from broker.nats_api import NO_STREAM, ApiRefusedError, JetStreamApi
from broker.nats_append import EXPECTED_SEQ, EXPECTED_SUBJECT, Appender, ConflictError
from broker.nats_connection import (
    NatsConnection,
    NatsSubscription,
    Reply,
    open_connection,
)
from broker.nats_consume import DurableConsumer, NatsDelivery
from broker.nats_objects import ObjectStore
from broker.nats_pull import OrderedReader
from broker.nats_transport import ConnectOptions
from broker.stored import Record, kv_entry
from broker.topology import DECISIONS, kv_stream, kv_subject

logger = logging.getLogger(__name__)

_DELETE_KEY = {"KV-Operation": "DEL"}
DEFAULT_OPTIONS = ConnectOptions()


async def connect(url: str, *, name: str, options: ConnectOptions = DEFAULT_OPTIONS) -> "NatsBus":
    """Connect to a NATS server (2.11 or newer, with JetStream), or raise `BusError`."""
    connection = await open_connection(url, name, options)
    bus = NatsBus(connection)
    await bus.start()
    return bus


class NatsBus:
    """One service's connection; made by `connect`."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._api = JetStreamApi(connection)
        self._appender = Appender(connection, self._api)
        self._objects = ObjectStore(connection, self._api, self._appender)
        self._kept_streams: dict[str, Mapping[str, Any]] = {}

    async def start(self) -> None:
        """Subscribe to the replies; called once by `connect`."""
        await self._appender.start()

    @property
    def is_connected(self) -> bool:
        return self._connection.is_connected

    @property
    def disconnected_since_ms(self) -> int | None:
        return self._connection.disconnected_since_ms

    @property
    def generation(self) -> int:
        return self._connection.generation

    async def publish(self, subject: str, data: bytes) -> None:
        await self._connection.publish(subject, data)

    async def subscribe(self, subject: str, handler: Handler) -> NatsSubscription:
        async def on_message(message: Reply) -> None:
            try:
                await handler(BusMessage(message.subject, message.data, message.reply))
            except Exception:
                logger.exception("handler of %s failed", subject)

        subscription = await self._connection.subscribe(subject, on_message)
        if self.is_connected:
            await self._connection.barrier()
        return subscription

    async def request(self, subject: str, data: bytes, *, timeout_ms: int = 5_000) -> bytes:
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + timeout_ms
        await self._connection.wait_connected(timeout_ms / 1000)
        left_ms = max(1, deadline_ms - clock.monotonic_ms())
        return bytes((await self._connection.request(subject, data, left_ms / 1000)).data)

    async def respond(self, message: BusMessage, data: bytes) -> None:
        if message.reply:
            await self._connection.publish(message.reply, data)

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str = "",
        epoch: int | None = None,
        timeout_ms: int = 10_000,
    ) -> Stored:
        fence = {} if epoch is None else _expect(epoch, subjects.LEADER)
        try:
            return await self._appender.append(
                subject, data, fence, message_id=message_id, timeout_ms=timeout_ms
            )
        except ConflictError:
            raise FencedError(epoch or 0) from None

    async def claim_leadership(self, data: bytes, *, message_id: str) -> int:
        newest = await self._api.last_message(DECISIONS, subjects.LEADER)
        if newest is not None and newest.message_id == message_id:
            return newest.seq
        expected = 0 if newest is None else newest.seq
        try:
            stored = await self._appender.append(
                subjects.LEADER, data, {EXPECTED_SEQ: str(expected)}, message_id=message_id
            )
        except ConflictError:
            raise FencedError(expected) from None
        if stored.duplicate and stored.seq <= expected:
            raise FencedError(expected)
        return stored.seq

    async def read(
        self, stream: str, *, from_seq: int, subject: str = ""
    ) -> AsyncGenerator[StoredMessage]:
        async with aclosing(self._records(stream, subject, from_seq)) as records:
            async for record in records:
                if record is not None:
                    yield record.message

    def _records(self, stream: str, subject: str, from_seq: int | None) -> Any:
        reader = OrderedReader(self._connection, self._api, stream, subject, from_seq)
        return reader.records()

    async def read_until(
        self, stream: str, *, from_seq: int, last_seq: int, subject: str = ""
    ) -> AsyncGenerator[StoredMessage]:
        if from_seq > last_seq:
            return
        ends_at = (await self._api.stream_state(stream)).last_seq
        if ends_at < last_seq:
            raise BusError(f"stream {stream} ends at {ends_at}, before {last_seq}")
        async with aclosing(self._records(stream, subject, from_seq)) as records:
            async for record in records:
                if record is None or record.message.seq > last_seq:
                    return
                yield record.message
                if record.message.seq == last_seq:
                    return

    async def consume(
        self, stream: str, *, durable: str, subject: str
    ) -> AsyncGenerator[NatsDelivery]:
        consumer = DurableConsumer(self._connection, self._api, stream, durable, subject)
        async with aclosing(consumer.deliveries()) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        return await self._api.last_message(stream, subject)

    async def last_messages(self, stream: str, subject: str) -> list[StoredMessage]:
        return [record.message for record in await self._newest_of_each(stream, subject)]

    async def _newest_of_each(self, stream: str, subject: str) -> list[Record]:
        found: list[Record] = []
        async with aclosing(self._records(stream, subject, None)) as records:
            async for record in records:
                if record is None:
                    break
                found.append(record)
        return found

    async def stream_state(self, stream: str) -> StreamState:
        return await self._api.stream_state(stream)

    async def kv_get(self, bucket: str, key: str) -> KvEntry | None:
        record = await self._api.last_record(kv_stream(bucket), kv_subject(bucket, key))
        if record is None or record.is_deleted_key:
            return None
        return kv_entry(bucket, record)

    async def kv_put(self, bucket: str, key: str, data: bytes) -> int:
        return (await self._appender.append(kv_subject(bucket, key), data, {})).seq

    async def kv_compare_and_set(self, bucket: str, key: str, data: bytes, revision: int) -> int:
        subject = kv_subject(bucket, key)
        try:
            return (await self._appender.append(subject, data, {EXPECTED_SEQ: str(revision)})).seq
        except ConflictError:
            deletion = 0 if revision else await self._deletion_of(bucket, key)
            if not deletion:
                raise WrongRevisionError(key, revision) from None
        try:
            return (await self._appender.append(subject, data, {EXPECTED_SEQ: str(deletion)})).seq
        except ConflictError:
            raise WrongRevisionError(key, revision) from None

    async def _deletion_of(self, bucket: str, key: str) -> int:
        """Return the revision at which a key was deleted, 0 if it is not."""
        record = await self._api.last_record(kv_stream(bucket), kv_subject(bucket, key))
        return record.message.seq if record is not None and record.is_deleted_key else 0

    async def kv_delete(self, bucket: str, key: str) -> None:
        await self._appender.append(kv_subject(bucket, key), b"", _DELETE_KEY)

    async def kv_all(self, bucket: str) -> Mapping[str, KvEntry]:
        records = await self._newest_of_each(kv_stream(bucket), kv_subject(bucket, ">"))
        entries = [kv_entry(bucket, record) for record in records if not record.is_deleted_key]
        return {entry.key: entry for entry in entries}

    async def kv_watch(self, bucket: str, key: str = ">") -> AsyncGenerator[KvEntry | None]:
        is_current = False
        source = self._records(kv_stream(bucket), kv_subject(bucket, key), None)
        async with aclosing(source) as records:
            async for record in records:
                if record is None:
                    is_current = True
                    yield None
                elif is_current or not record.is_deleted_key:
                    yield kv_entry(bucket, record)

    async def object_put(self, bucket: str, name: str, data: bytes) -> None:
        await self._objects.put(bucket, name, data)

    async def object_get(self, bucket: str, name: str) -> bytes | None:
        return await self._objects.get(bucket, name)

    async def barrier(self) -> None:
        await self._connection.barrier()

    async def close(self) -> None:
        self._appender.close()
        await self._connection.close()

    async def stream_config(self, name: str) -> Mapping[str, Any] | None:
        """Return a stream's configuration on the server, None if it does not exist."""
        try:
            info = await self._api.stream_info(name)
        except ApiRefusedError as error:
            if error.err_code == NO_STREAM:
                return None
            raise
        config: Mapping[str, Any] = info["config"]
        return config

    async def create_stream(self, config: Mapping[str, Any]) -> None:
        """Create a stream; the same configuration again is fine."""
        await self._api.call(f"STREAM.CREATE.{config['name']}", config)

    async def update_stream(self, config: Mapping[str, Any]) -> None:
        """Change a stream's configuration in place."""
        await self._api.call(f"STREAM.UPDATE.{config['name']}", config)

    def keep_stream(self, config: Mapping[str, Any]) -> None:
        """Create a stream again after each reconnect, if the server forgot it."""
        if not self._kept_streams:
            self._connection.on_reconnect(self._restore_kept_streams)
        self._kept_streams[str(config["name"])] = config

    async def _restore_kept_streams(self) -> None:
        self._connection.spawn(self._create_kept_streams())

    async def _create_kept_streams(self) -> None:
        for config in self._kept_streams.values():
            try:
                await self.create_stream(config)
            except BusError as error:
                logger.warning("cannot restore stream %s: %s", config["name"], error)


def _expect(seq: int, subject: str) -> dict[str, str]:
    """Headers: store only if the last message on ``subject`` has this sequence."""
    return {EXPECTED_SEQ: str(seq), EXPECTED_SUBJECT: subject}
