"""Orders to start that waited, for us or for the bus, and were withdrawn meanwhile.

The scheduler may have given such a run up and placed it elsewhere. Not even for a moment may it
start here, so whoever obeys an order that is not fresh looks for a stop behind it first.
"""

import logging
from contextlib import aclosing

from broker import subjects
from broker.bus import Bus, StoredMessage
from broker.codec import decode_output
from broker.errors import CodecError
from broker.schemas.command import AnyCommand, Command, PreemptRun, PrepareRun, StartRun, StopRun
from broker.schemas.fact import AnyFact
from broker.topology import DECISIONS

FRESH_MS = 5_000
"""A command whose stored time is so near to our clock was not waiting."""

logger = logging.getLogger(__name__)


def command_of(message: StoredMessage) -> AnyCommand | AnyFact | None:
    """Read a command; None, and a line in the log, if it cannot be read."""
    try:
        return decode_output(message.subject, message.data)
    except CodecError as error:
        logger.error("command %d dropped: %s", message.seq, error)  # noqa: TRY400 it is told
        return None


async def stop_behind(
    bus: Bus, command: Command, message: StoredMessage, now_ms: int
) -> PreemptRun | StopRun | None:
    """Return the stop of the same run that waits behind an order to start, if there is one.

    Raises `BusError`: then it is not known, and nothing may start.
    """
    is_fresh = abs(now_ms - message.at_ms) < FRESH_MS
    if is_fresh or not isinstance(command, PrepareRun | StartRun):
        return None
    last_seq = (await bus.stream_state(DECISIONS)).last_seq
    if last_seq == message.seq:
        return None
    subject = subjects.commands_of(command.node)
    waiting = bus.read_until(
        DECISIONS, from_seq=message.seq + 1, last_seq=last_seq, subject=subject
    )
    async with aclosing(waiting) as later:
        async for stored in later:
            other = command_of(stored)
            if isinstance(other, PreemptRun | StopRun) and other.run_id == command.run_id:
                return other
    return None
