"""Durable consumers: each message once to its handler, again if it was not acknowledged."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from broker.bus import StoredMessage
from broker.errors import BusUnavailableError, NoRespondersError
from broker.nats_api import ConsumerInfo, JetStreamApi
from broker.nats_connection import NatsConnection
from broker.nats_pull import PullLoop, ack_fields, record_of

logger = logging.getLogger(__name__)

_NS = 1_000_000_000
_ACK_WAIT_S = 30
_BATCH = 64
_ACK_TIMEOUT_S = 2.0
_ACK = b"+ACK"
_RELEASE_WAIT_NS = 1_000_000
_RELEASE_PAUSE_S = 0.2


class NatsDelivery:
    """A message of a durable consumer."""

    def __init__(
        self, consumer: "DurableConsumer", message: StoredMessage, reply: str, generation: int
    ) -> None:
        self._consumer = consumer
        self._message = message
        self._reply = reply
        self._generation = generation

    @property
    def message(self) -> StoredMessage:
        return self._message

    async def ack(self) -> None:
        await self._consumer.ack(self._message.seq, self._reply, self._generation)

    async def in_progress(self) -> None:
        await self._consumer.in_progress(self._reply)


class DurableConsumer:
    """One run of a durable consumer; it yields no message twice.

    ``_held`` are the messages not acknowledged yet, ``_done`` those whose acknowledgement the
    server did not confirm: should they come again, they are acknowledged again.
    """

    def __init__(
        self,
        connection: NatsConnection,
        api: JetStreamApi,
        stream: str,
        durable: str,
        subject: str,
    ) -> None:
        self._connection = connection
        self._api = api
        self._stream = stream
        self._durable = durable
        self._subject = subject
        self._held: set[int] = set()
        self._done: set[int] = set()

    async def deliveries(self) -> AsyncGenerator[NatsDelivery]:
        """Yield messages for ever."""
        async with PullLoop(self._connection, self._stream, self._open, _BATCH) as pulled:
            while True:
                item = await pulled.next()
                if isinstance(item, ConsumerInfo):
                    continue
                generation = self._connection.generation
                fields = ack_fields(item.reply)
                if fields.stream_seq in self._done:
                    await self.ack(fields.stream_seq, item.reply, generation)
                elif fields.stream_seq not in self._held:
                    self._held.add(fields.stream_seq)
                    message = record_of(item, fields).message
                    yield NatsDelivery(self, message, item.reply, generation)

    async def ack(self, seq: int, reply: str, generation: int) -> None:
        """Acknowledge, and wait for the server's word.

        A server that restarted since the delivery may not know it: no word is waited for then.
        """
        self._held.discard(seq)
        self._done.add(seq)
        if generation != self._connection.generation:
            await self._connection.publish(reply, _ACK)
            return
        try:
            await self._connection.request(reply, _ACK, _ACK_TIMEOUT_S)
        except (BusUnavailableError, NoRespondersError) as error:
            logger.info("acknowledgement of %s %d is not confirmed: %s", self._stream, seq, error)
        else:
            self._done.discard(seq)

    async def in_progress(self, reply: str) -> None:
        """Ask for more time."""
        await self._connection.publish(reply, b"+WPI")

    async def _open(self) -> ConsumerInfo:
        while True:
            try:
                consumer = await self._api.create_consumer(
                    self._stream, self._config(_ACK_WAIT_S * _NS)
                )
                if consumer.num_ack_pending > 0:
                    await self._release_unacknowledged()
            except BusUnavailableError as error:
                logger.info("cannot consume %s yet: %s", self._stream, error)
            else:
                return consumer

    async def _release_unacknowledged(self) -> None:
        """Make the server offer at once what went to a predecessor or a broken connection.

        It would wait for the acknowledgement otherwise; changing that wait makes it look.
        """
        await self._api.create_consumer(self._stream, self._config(_RELEASE_WAIT_NS))
        await asyncio.sleep(_RELEASE_PAUSE_S)
        await self._api.create_consumer(self._stream, self._config(_ACK_WAIT_S * _NS))

    def _config(self, ack_wait_ns: int) -> dict[str, Any]:
        return {
            "name": self._durable,
            "durable_name": self._durable,
            "filter_subject": self._subject,
            "ack_policy": "explicit",
            "ack_wait": ack_wait_ns,
            "deliver_policy": "all",
            "max_deliver": -1,
            "max_ack_pending": 1_000,
        }
