"""Inputs that could not be handled, kept with the reason so that nothing is lost silently.

``dead.input`` holds what nobody can read. ``dead.core`` holds what the core failed on, a defect of
ours: the service stops, and recovery folds the log without that input.
"""

from contextlib import aclosing

import msgspec

from broker import codec, subjects
from broker.bus import Bus, StoredMessage
from broker.topology import DEAD

UNREADABLE = subjects.dead_letter("input")
CORE_FAILED = subjects.dead_letter("core")
MAX_DATA_BYTES = 256 * 1024


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One input that was put aside.

    ``data`` is its payload (base64 in JSON), cut at 256 KiB; the input log has the whole.
    """

    input_seq: int
    subject: str
    data: bytes
    error: str
    at_ms: int


def dead_letter_of(stored: StoredMessage, error: Exception) -> DeadLetter:
    """Describe an input that raised ``error``."""
    return DeadLetter(
        input_seq=stored.seq,
        subject=stored.subject,
        data=stored.data[:MAX_DATA_BYTES],
        error=str(error) or type(error).__name__,
        at_ms=stored.at_ms,
    )


async def bury(bus: Bus, kind: str, letter: DeadLetter) -> None:
    """Append a letter to ``UNREADABLE`` or ``CORE_FAILED``; a second time changes nothing."""
    await bus.append(kind, codec.encode(letter), message_id=f"{kind}/{letter.input_seq}")


async def last_unreadable_seq(bus: Bus) -> int:
    """Return the input sequence of the newest unreadable input that was put aside, or 0."""
    stored = await bus.last_message(DEAD, UNREADABLE)
    return 0 if stored is None else codec.decode(DeadLetter, stored.data, UNREADABLE).input_seq


async def seqs_the_core_failed_on(bus: Bus) -> frozenset[int]:
    """Return the input sequences that a fold must leave out."""
    state = await bus.stream_state(DEAD)
    if state.last_seq < state.first_seq:
        return frozenset()
    letters = bus.read_until(
        DEAD, from_seq=state.first_seq, last_seq=state.last_seq, subject=CORE_FAILED
    )
    async with aclosing(letters) as found:
        return frozenset(
            [codec.decode(DeadLetter, item.data, item.subject).input_seq async for item in found]
        )
