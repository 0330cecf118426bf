"""The JetStream API as plain JSON requests, retried while nobody answers.

`BusUnavailableError` means that nobody answered in time, `ApiRefusedError` that the server said no.
"""

import asyncio
import base64
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from broker.bus import StoredMessage, StreamState
from broker.errors import BusError, BusUnavailableError, NoRespondersError
from broker.nats_connection import NatsConnection, status_of
from broker.stored import Record

NO_MESSAGE = 10037
NO_STREAM = 10059
TIMEOUT_S = 10.0
MESSAGE_ID_HEADER = "Nats-Msg-Id"
_ATTEMPT_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ServerError(msgspec.Struct, frozen=True):
    """The ``error`` object of an answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    @property
    def is_transient(self) -> bool:
        """No leader yet, or a duplicate still in work: the same request may work later."""
        return self.code in (408, 409, 500, 503) and self.err_code not in _FULL


_FULL = (10023, 10047, 10077)
"""Out of space: 503 as well, but waiting does not help."""


class ApiRefusedError(BusError):
    """The server refused a request; ``err_code`` is JetStream's."""

    def __init__(self, what: str, error: ServerError) -> None:
        super().__init__(f"{what}: {error.description} (JetStream error {error.err_code})")
        self.err_code = error.err_code


class ConsumerInfo(msgspec.Struct, frozen=True):
    """What the server says of a consumer when it is created."""

    name: str = ""
    num_pending: int = 0
    num_ack_pending: int = 0


class _RawMessage(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class _Answer(msgspec.Struct, frozen=True):
    error: ServerError | None = None


class JetStreamApi:
    """Requests about streams and consumers."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def call(
        self, verb: str, body: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S
    ) -> bytes:
        """Send ``$JS.API.<verb>`` until there is a definite answer, and return it."""
        payload = b"" if body is None else msgspec.json.encode(body)
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            answer = await self._attempt(verb, payload, deadline)
            if isinstance(answer, bytes):
                return answer
            if time.monotonic() + pause_s > deadline:
                raise BusUnavailableError(f"JetStream does not answer {verb}: {answer}")
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    async def _attempt(self, verb: str, payload: bytes, deadline: float) -> bytes | str:
        """Return the answer, or why there is none yet."""
        left_s = max(0.001, deadline - time.monotonic())
        try:
            await self._connection.wait_connected(left_s)
            reply = await self._connection.request(
                f"$JS.API.{verb}", payload, min(left_s, _ATTEMPT_S)
            )
        except (BusUnavailableError, NoRespondersError) as nobody:
            return str(nobody)
        data = bytes(reply.data)
        error = msgspec.json.decode(data, type=_Answer).error
        if error is None:
            return data
        if error.is_transient:
            return error.description
        raise ApiRefusedError(verb, error)

    async def stream_info(self, name: str) -> dict[str, Any]:
        """Return ``config`` and ``state`` of a stream; refused with `NO_STREAM` if missing."""
        info: dict[str, Any] = msgspec.json.decode(await self.call(f"STREAM.INFO.{name}"))
        return info

    async def stream_state(self, name: str) -> StreamState:
        state = (await self.stream_info(name))["state"]
        first = state["first_seq"] if state["messages"] else state["last_seq"] + 1
        return StreamState(first_seq=first, last_seq=state["last_seq"], bytes=state["bytes"])

    async def create_consumer(self, stream: str, config: Mapping[str, Any]) -> ConsumerInfo:
        """Create or update a named consumer."""
        verb = f"CONSUMER.CREATE.{stream}.{config['name']}.{config['filter_subject']}"
        body = {"stream_name": stream, "config": config}
        return msgspec.json.decode(await self.call(verb, body), type=ConsumerInfo)

    async def forget_consumer(self, stream: str, name: str) -> None:
        """Ask to delete a consumer, without waiting: an unused one goes by itself."""
        await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"")

    async def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        """Read the newest message of a subject from the stream's leader."""
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        except ApiRefusedError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        raw = msgspec.convert(msgspec.json.decode(answer)["message"], _RawMessage)
        headers = base64.b64decode(raw.hdrs).decode(errors="replace").split("\r\n")
        values = dict(line.split(": ", 1) for line in headers if ": " in line)
        return StoredMessage(
            raw.subject,
            base64.b64decode(raw.data),
            raw.seq,
            timestamp_ms(raw.time),
            values.get(MESSAGE_ID_HEADER, ""),
        )

    async def last_record(self, stream: str, subject: str) -> Record | None:
        """Read the newest message of a subject from any replica: fast, perhaps a little old."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            try:
                await self._connection.wait_connected(left_s)
                reply = await self._connection.request(
                    f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", min(left_s, _ATTEMPT_S)
                )
            except (BusUnavailableError, NoRespondersError):
                pass
            else:
                return None if status_of(reply) == "404" else direct_record(reply)
            if time.monotonic() > deadline:
                raise BusUnavailableError(f"nobody answers a read of {subject!r}")
            await asyncio.sleep(_FIRST_PAUSE_S)


def direct_record(reply: Any) -> Record:
    """Read the answer to a direct get."""
    headers = reply.headers or {}
    message = StoredMessage(
        headers["Nats-Subject"],
        bytes(reply.data),
        int(headers["Nats-Sequence"]),
        timestamp_ms(headers["Nats-Time-Stamp"]),
        headers.get(MESSAGE_ID_HEADER, ""),
    )
    return Record(message, is_deletion(headers))


def is_deletion(headers: Mapping[str, str] | None) -> bool:
    """Tell whether a message of a KV bucket says that its key is gone."""
    if not headers:
        return False
    return headers.get("KV-Operation") in ("DEL", "PURGE") or "Nats-Marker-Reason" in headers


def timestamp_ms(text: str) -> int:
    """Return the milliseconds of an RFC 3339 time with any number of fractional digits."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)
