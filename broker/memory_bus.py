"""The bus in memory: the same promises as `nats_bus`, deterministic, with time from a clock.

Several buses share one `MemoryServer`, as several services share one NATS server.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from broker import subjects
from broker.bus import BusMessage, Handler, KvEntry, Stored, StoredMessage, StreamState
from broker.clock import settle
from broker.errors import (
    BusError,
    BusUnavailableError,
    FencedError,
    NoRespondersError,
    WrongRevisionError,
)
from broker.memory_server import MemoryServer, MemorySubscription
from broker.memory_stream import Durable, MemoryStream
from broker.stored import Record, kv_entry
from broker.topology import DECISIONS, kv_stream, kv_subject

__all__ = ["MemoryBus", "MemoryServer"]


class MemoryDelivery:
    """A message of a durable consumer."""

    def __init__(self, bus: "MemoryBus", durable: Durable, message: StoredMessage) -> None:
        self._bus = bus
        self._durable = durable
        self._message = message

    @property
    def message(self) -> StoredMessage:
        return self._message

    async def ack(self) -> None:
        if self._bus.is_connected:
            self._durable.unacked.pop(self._message.seq, None)
        elif self._message.seq in self._durable.unacked:
            self._durable.lost_acks.append(self._message.seq)

    async def in_progress(self) -> None:
        """Do nothing: in memory a message is redelivered only to the next consumer."""


class MemoryBus:
    """One service's connection to a `MemoryServer`; see `broker.bus.Bus`."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self._clock = server.clock
        self._subscriptions: list[MemorySubscription] = []
        self._connected = asyncio.Event()
        self._connected.set()
        self._disconnected_since_ms: int | None = None
        self._generation = 0

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def disconnected_since_ms(self) -> int | None:
        return self._disconnected_since_ms

    @property
    def generation(self) -> int:
        return self._generation

    def disconnect(self) -> None:
        """Cut the connection, as a network fault would."""
        self._connected.clear()
        self._disconnected_since_ms = self._clock.monotonic_ms()

    def reconnect(self) -> None:
        """Heal the connection."""
        self._disconnected_since_ms = None
        self._generation += 1
        self._connected.set()
        for stream in self.server.streams.values():
            stream.wake()

    async def publish(self, subject: str, data: bytes) -> None:
        if self.is_connected:
            self._send(BusMessage(subject, data))

    def _send(self, message: BusMessage) -> int:
        """Store a core message where a stream captures it, and deliver it."""
        listeners = self.server.deliver(message)
        stream = self.server.capturing(message.subject)
        if stream is None:
            return listeners
        try:
            stored = stream.append(message.subject, message.data, "", self._clock.now_ms())
        except BusError:
            return listeners
        if message.reply:
            acknowledgement = json.dumps({"stream": stream.name, "seq": stored.seq})
            self.server.deliver(BusMessage(message.reply, acknowledgement.encode()))
        return listeners + 1

    async def subscribe(self, subject: str, handler: Handler) -> MemorySubscription:
        subscription = MemorySubscription(self, self.server, subject, handler)
        self._subscriptions.append(subscription)
        self.server.add(subscription)
        return subscription

    async def request(self, subject: str, data: bytes, *, timeout_ms: int = 5_000) -> bytes:
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        await self._wait_connected(subject, deadline_ms)
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def take(message: BusMessage) -> None:
            if not reply.done():
                reply.set_result(message.data)

        inbox = self.server.new_inbox()
        subscription = await self.subscribe(inbox, take)
        try:
            if not self._send(BusMessage(subject, data, inbox)):
                raise NoRespondersError(subject)
            await self._before(deadline_ms, reply, subject)
            return reply.result()
        finally:
            self._subscriptions.remove(subscription)
            await subscription.unsubscribe()

    async def respond(self, message: BusMessage, data: bytes) -> None:
        if message.reply:
            await self.publish(message.reply, data)

    async def _wait_connected(self, subject: str, deadline_ms: int) -> None:
        if not self.is_connected:
            waiting = asyncio.ensure_future(self._connected.wait())
            await self._before(deadline_ms, waiting, subject)

    async def _before(self, deadline_ms: int, wanted: asyncio.Future[Any], subject: str) -> None:
        """Wait for a future, at most until a time of the clock."""
        left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
        alarm = asyncio.ensure_future(self._clock.sleep_ms(left_ms))
        try:
            await asyncio.wait([wanted, alarm], return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                raise BusUnavailableError(f"no answer on {subject!r} in time")
        finally:
            alarm.cancel()
            wanted.cancel()

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str = "",
        epoch: int | None = None,
        timeout_ms: int = 10_000,
    ) -> Stored:
        def fence(stream: MemoryStream) -> None:
            if epoch is not None and epoch != _newest_seq(stream, subjects.LEADER):
                raise FencedError(epoch)

        return await self._store(subject, data, message_id, timeout_ms, fence)

    async def _store(
        self,
        subject: str,
        data: bytes,
        message_id: str = "",
        timeout_ms: int = 10_000,
        check: Callable[[MemoryStream], None] = lambda _: None,
        *,
        deleted: bool = False,
    ) -> Stored:
        await self._wait_connected(subject, self._clock.monotonic_ms() + timeout_ms)
        stream = self.server.capturing(subject)
        if stream is None:
            raise BusUnavailableError(f"no stream captures {subject!r}")
        check(stream)
        now_ms = self._clock.now_ms()
        duplicate = stream.duplicate_of(message_id, now_ms) if message_id else None
        stored = duplicate or stream.append(subject, data, message_id, now_ms, deleted=deleted)
        if not duplicate:
            self.server.deliver(BusMessage(subject, data))
        await asyncio.sleep(0)
        return stored

    async def claim_leadership(self, data: bytes, *, message_id: str) -> int:
        stream = self.server.stream(DECISIONS)
        newest = stream.newest(subjects.LEADER)
        if newest is not None and newest.message.message_id == message_id:
            return newest.message.seq
        expected = _newest_seq(stream, subjects.LEADER)

        def fence(stream: MemoryStream) -> None:
            if _newest_seq(stream, subjects.LEADER) != expected:
                raise FencedError(expected)

        stored = await self._store(subjects.LEADER, data, message_id, check=fence)
        if stored.duplicate:
            raise FencedError(expected)
        return stored.seq

    async def _records(
        self, stream_name: str, from_seq: int, subject: str
    ) -> AsyncGenerator[Record]:
        """Yield records from a sequence on, for ever, while connected."""
        stream = self.server.stream(stream_name)
        next_seq = from_seq
        while True:
            await self._connected.wait()
            changed = stream.changed
            record = next(stream.records_from(next_seq, subject), None)
            if record is None:
                next_seq = max(next_seq, stream.state.last_seq + 1)
                await changed.wait()
                continue
            next_seq = record.message.seq + 1
            yield record

    async def read(
        self, stream: str, *, from_seq: int, subject: str = ""
    ) -> AsyncGenerator[StoredMessage]:
        async for record in self._records(stream, from_seq, subject):
            yield record.message

    async def read_until(
        self, stream: str, *, from_seq: int, last_seq: int, subject: str = ""
    ) -> AsyncGenerator[StoredMessage]:
        ends_at = self.server.stream(stream).state.last_seq
        if from_seq <= last_seq and ends_at < last_seq:
            raise BusError(f"stream {stream} ends at {ends_at}, before {last_seq}")
        while from_seq <= last_seq:
            await self._connected.wait()
            record = next(self.server.stream(stream).records_from(from_seq, subject), None)
            if record is None or record.message.seq > last_seq:
                return
            from_seq = record.message.seq + 1
            yield record.message

    async def consume(
        self, stream: str, *, durable: str, subject: str
    ) -> AsyncGenerator[MemoryDelivery]:
        source = self.server.stream(stream)
        state = source.durables.setdefault(durable, Durable(subject))
        state.subject = subject
        state.lost_acks = sorted(state.unacked)
        while True:
            await self._connected.wait()
            changed = source.changed
            message = self._next_delivery(source, state)
            if message is not None:
                yield MemoryDelivery(self, state, message)
                continue
            await changed.wait()

    @staticmethod
    def _next_delivery(source: MemoryStream, state: Durable) -> StoredMessage | None:
        while state.lost_acks:
            again = state.unacked.get(state.lost_acks.pop(0))
            if again is not None:
                return again
        record = next(source.records_from(state.next_seq, state.subject), None)
        if record is None:
            return None
        state.next_seq = record.message.seq + 1
        state.unacked[record.message.seq] = record.message
        return record.message

    async def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        await self._reachable(stream)
        newest = self.server.stream(stream).newest(subject)
        return None if newest is None else newest.message

    async def last_messages(self, stream: str, subject: str) -> list[StoredMessage]:
        await self._reachable(stream)
        return [record.message for record in self.server.stream(stream).newest_of_each(subject)]

    async def stream_state(self, stream: str) -> StreamState:
        await self._reachable(stream)
        return self.server.stream(stream).state

    async def _reachable(self, what: str) -> None:
        await self._wait_connected(what, self._clock.monotonic_ms() + 5_000)

    async def kv_get(self, bucket: str, key: str) -> KvEntry | None:
        await self._reachable(bucket)
        newest = self.server.stream(kv_stream(bucket)).newest(kv_subject(bucket, key))
        if newest is None or newest.is_deleted_key:
            return None
        return kv_entry(bucket, newest)

    async def kv_put(self, bucket: str, key: str, data: bytes) -> int:
        return (await self._store(kv_subject(bucket, key), data)).seq

    async def kv_compare_and_set(self, bucket: str, key: str, data: bytes, revision: int) -> int:
        subject = kv_subject(bucket, key)

        def expect(stream: MemoryStream) -> None:
            newest = stream.newest(subject)
            is_free = newest is None or newest.is_deleted_key
            if revision != _newest_seq(stream, subject) and not (revision == 0 and is_free):
                raise WrongRevisionError(key, revision)

        return (await self._store(subject, data, check=expect)).seq

    async def kv_delete(self, bucket: str, key: str) -> None:
        await self._store(kv_subject(bucket, key), b"", deleted=True)

    async def kv_all(self, bucket: str) -> Mapping[str, KvEntry]:
        await self._reachable(bucket)
        records = self.server.stream(kv_stream(bucket)).newest_of_each(kv_subject(bucket, ">"))
        entries = [kv_entry(bucket, record) for record in records if not record.is_deleted_key]
        return {entry.key: entry for entry in entries}

    async def kv_watch(self, bucket: str, key: str = ">") -> AsyncGenerator[KvEntry | None]:
        await self._reachable(bucket)
        stream = self.server.stream(kv_stream(bucket))
        next_seq = stream.state.last_seq + 1
        for record in stream.newest_of_each(kv_subject(bucket, key)):
            if not record.is_deleted_key:
                yield kv_entry(bucket, record)
        yield None
        async for record in self._records(stream.name, next_seq, kv_subject(bucket, key)):
            yield kv_entry(bucket, record)

    async def object_put(self, bucket: str, name: str, data: bytes) -> None:
        await self._reachable(bucket)
        self.server.objects[bucket, name] = data

    async def object_get(self, bucket: str, name: str) -> bytes | None:
        await self._reachable(bucket)
        return self.server.objects.get((bucket, name))

    async def barrier(self) -> None:
        await self._reachable("barrier")
        await settle(2)

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()
        self._connected.clear()

    async def stream_config(self, name: str) -> Mapping[str, Any] | None:
        """Return a stream's configuration, None if it does not exist."""
        stream = self.server.streams.get(name)
        return None if stream is None else stream.config

    async def create_stream(self, config: Mapping[str, Any]) -> None:
        """Create a stream from a configuration of the JetStream API."""
        self.server.streams[config["name"]] = MemoryStream(config)

    async def update_stream(self, config: Mapping[str, Any]) -> None:
        """Change a stream's configuration."""
        self.server.stream(config["name"]).config = dict(config)

    def keep_stream(self, config: Mapping[str, Any]) -> None:
        """Do nothing: the memory server forgets no stream."""


def _newest_seq(stream: MemoryStream, subject: str) -> int:
    newest = stream.newest(subject)
    return 0 if newest is None else newest.message.seq
