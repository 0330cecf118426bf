"""What the decision log holds already, to be compared with what a fold decides."""

import hashlib
import logging
from contextlib import aclosing

import msgspec

from broker import codec, subjects
from broker.bus import Bus, StoredMessage
from broker.errors import CodecError
from broker.schemas.base import Output
from broker.schemas.command import Command
from broker.topology import DECISIONS

_log = logging.getLogger(__name__)


class Recorded:
    """The decisions in the log since the snapshot: output id -> digest of the content."""

    def __init__(self, bus: Bus, *, after_seq: int, after_cause_seq: int) -> None:
        self._bus = bus
        self._seq = after_seq
        self._digests: dict[str, bytes] = {}
        self.last_cause_seq = after_cause_seq
        self.divergences = 0

    async def read_to(self, last_seq: int) -> None:
        if last_seq <= self._seq:
            return
        decisions = self._bus.read_until(DECISIONS, from_seq=self._seq + 1, last_seq=last_seq)
        async with aclosing(decisions) as found:
            async for stored in found:
                if stored.subject != subjects.LEADER:
                    self._note(stored)
        self._seq = last_seq

    def _note(self, stored: StoredMessage) -> None:
        try:
            output = codec.decode_output(stored.subject, stored.data)
        except CodecError as error:
            _log.error("recorded decision is unreadable", extra={"problem": str(error)})
            self._digests[stored.message_id] = b""
            return
        if output.output_id in self._digests:
            self._diverged("is recorded twice", output.output_id)
        self._digests[output.output_id] = _digest(output)
        self.last_cause_seq = max(self.last_cause_seq, output.cause_seq)

    def take(self, output: Output) -> bool:
        """Return whether ``output`` is recorded; one that differs counts as divergent."""
        digest = self._digests.pop(output.output_id, None)
        if digest is not None and digest != _digest(output):
            self._diverged("differs from what is recorded", output.output_id)
        return digest is not None

    def close(self) -> None:
        """Count what the fold did not give."""
        for output_id in self._digests:
            self._diverged("is recorded and was not decided again", output_id)

    def _diverged(self, how: str, output_id: str) -> None:
        self.divergences += 1
        _log.error("divergence: a decision %s", how, extra={"output": output_id})


def _digest(output: Output) -> bytes:
    """Hash an output without its epoch, which names the leader and not the decision."""
    if isinstance(output, Command):
        output = msgspec.structs.replace(output, epoch=0)
    return hashlib.blake2b(codec.encode(output), digest_size=16).digest()
