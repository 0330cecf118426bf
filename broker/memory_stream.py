"""A stream in memory: order, subjects, de-duplication, last values and durable consumers.

The twin of a JetStream stream; `memory_bus` puts the bus around it. Nothing here waits.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from broker.bus import Stored, StoredMessage, StreamState
from broker.errors import BusError
from broker.stored import Record


def subject_matches(pattern: str, subject: str) -> bool:
    """Tell whether a subject falls under a pattern with ``*`` and ``>``."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        want in ("*", token) for want, token in zip(wanted, tokens, strict=True)
    )


class Durable:
    """What a stream remembers about a durable consumer."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.next_seq = 1
        self.unacked: dict[int, StoredMessage] = {}
        self.lost_acks: list[int] = []
        """Acknowledged while disconnected: the server still waits for them."""


class MemoryStream:
    """One stream. Its configuration is that of the JetStream API."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config: dict[str, Any] = dict(config)
        self.durables: dict[str, Durable] = {}
        self.changed = asyncio.Event()
        """Set at the next append, and then replaced by a fresh one."""
        self._records: dict[int, Record] = {}
        self._newest: dict[str, int] = {}
        self._ids: dict[str, tuple[int, int]] = {}
        self._last_seq = 0
        self._bytes = 0

    @property
    def name(self) -> str:
        return str(self.config["name"])

    def captures(self, subject: str) -> bool:
        """Tell whether messages on a subject are stored here."""
        return any(subject_matches(pattern, subject) for pattern in self.config["subjects"])

    def duplicate_of(self, message_id: str, now_ms: int) -> Stored | None:
        """Return where a message with this id already is, within the duplicate window."""
        self._forget_old_ids(now_ms)
        known = self._ids.get(message_id)
        return None if known is None else Stored(known[0], duplicate=True)

    def append(
        self, subject: str, data: bytes, message_id: str, now_ms: int, *, deleted: bool = False
    ) -> Stored:
        """Store a message that is not a duplicate; a full stream raises `BusError`."""
        size = len(subject) + len(data)
        self._make_room(size)
        self._last_seq += 1
        seq = self._last_seq
        message = StoredMessage(subject, data, seq, now_ms, message_id)
        older = self._newest.get(subject)
        if self.config.get("max_msgs_per_subject", -1) == 1 and older is not None:
            self._remove(older)
        self._records[seq] = Record(message, deleted)
        self._newest[subject] = seq
        self._bytes += size
        if message_id:
            self._ids[message_id] = (seq, now_ms)
        self.wake()
        return Stored(seq)

    def wake(self) -> None:
        """Make every waiting reader look again."""
        waiting, self.changed = self.changed, asyncio.Event()
        waiting.set()

    def _make_room(self, size: int) -> None:
        limit = self.config.get("max_bytes", -1)
        while 0 < limit < self._bytes + size:
            if self.config.get("discard") == "new" or not self._records:
                raise BusError(f"stream {self.name} is full: max_bytes is {limit}")
            self._remove(next(iter(self._records)))

    def _remove(self, seq: int) -> None:
        message = self._records.pop(seq).message
        self._bytes -= len(message.subject) + len(message.data)
        if self._newest.get(message.subject) == seq:
            del self._newest[message.subject]

    def _forget_old_ids(self, now_ms: int) -> None:
        window_ms = self.config.get("duplicate_window", 120_000_000_000) // 1_000_000
        while self._ids:
            message_id, (_, at_ms) = next(iter(self._ids.items()))
            if now_ms - at_ms < window_ms:
                return
            del self._ids[message_id]

    def newest(self, subject: str) -> Record | None:
        """Return the newest message on exactly this subject."""
        seq = self._newest.get(subject)
        return None if seq is None else self._records[seq]

    def newest_of_each(self, pattern: str) -> list[Record]:
        """Return the newest message of each subject under a pattern, in stream order."""
        found = [seq for subject, seq in self._newest.items() if subject_matches(pattern, subject)]
        return [self._records[seq] for seq in sorted(found)]

    def records_from(self, seq: int, pattern: str) -> Iterator[Record]:
        """Yield what is stored now, from a sequence on, under a pattern ('' for all)."""
        for number in range(max(seq, self.state.first_seq), self._last_seq + 1):
            record = self._records.get(number)
            if record and (not pattern or subject_matches(pattern, record.message.subject)):
                yield record

    @property
    def state(self) -> StreamState:
        first = next(iter(self._records), self._last_seq + 1)
        return StreamState(first_seq=first, last_seq=self._last_seq, bytes=self._bytes)
