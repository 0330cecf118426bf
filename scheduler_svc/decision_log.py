"""Appends what the core decides, fenced by the epoch of this term, in order and in a window."""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from broker import codec, subjects
from broker.bus import Bus
from broker.errors import FencedError
from broker.ids import InvalidIdError
from broker.job_file import MAX_REQUEST_BYTES
from broker.schemas.base import Output, tag_of
from broker.schemas.command import Command
from broker.schemas.fact import JobFact, NodeFact, fact_kind

WINDOW = 256
"""Appends awaited together; more would only wait in the server."""

_log = logging.getLogger(__name__)


def subject_of(output: Output) -> str:
    """Return the subject an output is published on."""
    match output:
        case Command():
            return subjects.command(output.node, tag_of(type(output)).split(".", 1)[1])
        case JobFact():
            return subjects.job_fact(output.job_id, fact_kind(output))
        case NodeFact():
            return subjects.node_fact(output.node, fact_kind(output))
    raise TypeError(f"neither a command nor a fact: {type(output).__name__}")


class DecisionLog:
    """The decision log as its leader of term ``epoch`` writes it."""

    def __init__(self, bus: Bus, epoch: int) -> None:
        self._bus = bus
        self.epoch = epoch
        self.last_seq = epoch
        """All decisions up to here are stored."""
        self.unsayable = 0
        """Outputs left out because no message can hold them."""

    async def append(self, outputs: Sequence[Output]) -> None:
        """Return when all outputs are stored; at most `WINDOW` are under way at once.

        Raises `FencedError` under a newer leader and `BusUnavailableError` when it is not known
        whether all are stored. Either way some may be: their ids make another try harmless.
        """
        for start in range(0, len(outputs), WINDOW):
            window = outputs[start : start + WINDOW]
            results = await asyncio.gather(*map(self._append, window), return_exceptions=True)
            errors = [result for result in results if isinstance(result, BaseException)]
            if errors:
                raise next((error for error in errors if isinstance(error, FencedError)), errors[0])
            self.last_seq = max([self.last_seq, *(seq for seq in results if isinstance(seq, int))])

    async def _append(self, output: Output) -> int:
        """Append one output; one that no message can hold is left out, for trying never ends."""
        if isinstance(output, Command):
            output = msgspec.structs.replace(output, epoch=self.epoch)
        data = codec.encode(output)
        try:
            subject = subject_of(output)
            problem = f"{len(data)} bytes" if len(data) > MAX_REQUEST_BYTES else ""
        except InvalidIdError as error:
            problem = str(error)
        if problem:
            self.unsayable += 1
            _log.error("decision left out", extra={"output": output.output_id, "problem": problem})
            return 0
        stored = await self._bus.append(
            subject, data, message_id=output.output_id, epoch=self.epoch
        )
        return stored.seq
