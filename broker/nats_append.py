"""Appends: one request each over a shared inbox, many in flight, retried until stored or refused.

What is unanswered is sent again, with the same message id and in the order of issue, after each
reconnect and when no answer comes; so an append is stored once. Only while a stream changes its
leader (an append is answered "nobody here") may a later append overtake an earlier one.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Mapping

import msgspec

from broker.bus import Stored
from broker.errors import BusError, BusUnavailableError
from broker.nats_api import MESSAGE_ID_HEADER, JetStreamApi, ServerError
from broker.nats_connection import NatsConnection, Reply, status_of

EXPECTED_SEQ = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
_IN_FLIGHT = 256
_ATTEMPT_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_WRONG_LAST_SEQUENCE = (10071, 10164)


class ConflictError(BusError):
    """The expected last sequence of the subject is not the last one."""


class _PubAck(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: ServerError | None = None


class _Pending:
    """An append without a definite answer yet."""

    def __init__(self, number: int, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        self.number = number
        self.subject = subject
        self.data = data
        self.headers = headers
        self.times_sent = 0
        self.answer: asyncio.Future[_PubAck | str] = asyncio.get_running_loop().create_future()
        """The acknowledgement, or why there is none yet."""


class Appender:
    """Appends of one connection."""

    def __init__(self, connection: NatsConnection, api: JetStreamApi) -> None:
        self._connection = connection
        self._api = api
        self._inbox = connection.new_inbox()
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._window = asyncio.Semaphore(_IN_FLIGHT)
        self._heard_at = 0.0

    async def start(self) -> None:
        await self._connection.subscribe(f"{self._inbox}.*", self._on_reply)
        self._connection.on_reconnect(self._send_all_again)

    def close(self) -> None:
        """Tell everyone who waits that no answer will come."""
        for pending in self._pending.values():
            if not pending.answer.done():
                error = BusUnavailableError(f"closed before {pending.subject!r} was confirmed")
                pending.answer.set_exception(error)

    async def append(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str],
        *,
        message_id: str = "",
        timeout_ms: int = 10_000,
    ) -> Stored:
        """Append; raises `ConflictError`, `BusError` if refused, `BusUnavailableError`.

        The time runs from the call; behind a full window, from the last answer to an append, so
        that a long burst to a slow disk goes through and a dead server fails all at once.
        """
        called_at = time.monotonic()
        headers = {MESSAGE_ID_HEADER: message_id or uuid.uuid4().hex, **headers}
        async with self._window:
            deadline = max(called_at, self._heard_at) + timeout_ms / 1000
            pending = _Pending(next(self._numbers), subject, data, headers)
            self._pending[pending.number] = pending
            try:
                answer = await self._until_answered(pending, deadline)
            finally:
                del self._pending[pending.number]
        if answer.error is None:
            return Stored(answer.seq, duplicate=answer.duplicate)
        if answer.error.err_code not in _WRONG_LAST_SEQUENCE:
            raise BusError(f"append to {subject!r} was refused: {answer.error.description}")
        return await self._stored_after_all(pending, answer)

    async def _until_answered(self, pending: _Pending, deadline: float) -> _PubAck:
        pause_s = _FIRST_PAUSE_S
        problem = "no answer"
        while (left_s := deadline - time.monotonic()) > 0:
            await self._send(pending)
            await asyncio.wait((pending.answer,), timeout=min(left_s, _ATTEMPT_S))
            if not pending.answer.done():
                continue
            answer = pending.answer.result()
            if isinstance(answer, _PubAck):
                return answer
            problem = answer
            await asyncio.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
            pending.answer = asyncio.get_running_loop().create_future()
        raise BusUnavailableError(
            f"append to {pending.subject!r} is not confirmed in time: {problem}"
        )

    async def _send(self, pending: _Pending) -> None:
        reply = f"{self._inbox}.{pending.number}"
        if await self._connection.publish(pending.subject, pending.data, reply, pending.headers):
            pending.times_sent += 1

    async def _send_all_again(self) -> None:
        for pending in self._pending.values():
            if not pending.answer.done():
                await self._send(pending)

    async def _on_reply(self, message: Reply) -> None:
        self._heard_at = time.monotonic()
        pending = self._pending.get(int(message.subject.rpartition(".")[2]))
        if pending is None or pending.answer.done():
            return
        if status_of(message):
            pending.answer.set_result("no stream captures the subject, or it has no leader")
            return
        try:
            answer = msgspec.json.decode(message.data, type=_PubAck)
        except msgspec.MsgspecError:
            pending.answer.set_result("an unreadable answer")
            return
        is_transient = answer.error is not None and answer.error.is_transient
        pending.answer.set_result(str(answer.error) if is_transient else answer)

    async def _stored_after_all(self, pending: _Pending, answer: _PubAck) -> Stored:
        """Look whether an earlier try of ours is what made the expectation wrong.

        A server with one replica compares sequences before message ids.
        """
        if pending.times_sent > 1 and EXPECTED_SUBJECT not in pending.headers:
            newest = await self._api.last_message(answer.stream, pending.subject)
            if newest is not None and newest.message_id == pending.headers[MESSAGE_ID_HEADER]:
                return Stored(newest.seq)
        raise ConflictError(f"append to {pending.subject!r} lost a race")
