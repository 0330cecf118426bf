"""From stored logs back to a leading core, with nothing lost and nothing said twice.

1. The newest readable snapshot that belongs to this log, or an empty core.
2. The decisions recorded since, by id; then the inputs since, folded.
3. Leadership is claimed: nobody else appends from here on. Step 2 again for what came meanwhile.
4. Outputs of the fold that are not recorded are left for the new leader to append: an earlier one
   died between deciding and recording.

A recorded decision that the fold does not give, or gives differently, is a divergence: it is
counted and logged, and the fold goes on, for the launchers' inventory sets nodes right.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import msgspec

from broker import codec, subjects
from broker.bus import Bus, StoredMessage, StreamState
from broker.errors import CodecError, TiresiasError
from broker.schemas.base import Output
from broker.schemas.command import Command
from broker.schemas.operator import ClockAdvanced
from broker.topology import DECISIONS, INPUT
from scheduler_svc import dead_letters
from scheduler_svc.dead_letters import DeadLetter
from scheduler_svc.fold import Core, Fold, View, view_key
from scheduler_svc.snapshots import Snapshot

MAX_CORE_FAILURES = 16

_CLOCK = subjects.scheduler_input("clock")
_log = logging.getLogger(__name__)


class RecoveryError(TiresiasError):
    """The state cannot be rebuilt from what is stored; a person must look."""


class CoreType(Protocol):
    """Makes cores: `scheduler_svc.core.scheduler.Scheduler` itself."""

    def __call__(self) -> Core: ...

    def restore(self, data: bytes) -> Core: ...


Claim = Callable[[int], Awaitable[int]]
"""Claims leadership, given the last input with a recorded decision; returns the epoch."""


class Recovered(msgspec.Struct):
    """Where a new leader starts. ``missing``, ``unreadable`` and ``views`` wait to be written."""

    fold: Fold
    snapshot_seq: int
    """The input of the snapshot it started from; 0 for none."""
    epoch: int
    missing: list[Output]
    unreadable: list[DeadLetter]
    views: list[View]
    divergences: int


class _Recorded:
    """The decisions in the log since the snapshot: output id -> digest of the content."""

    def __init__(self, bus: Bus, *, after_seq: int, after_cause_seq: int) -> None:
        self._bus = bus
        self._seq = after_seq
        self._after_cause_seq = after_cause_seq
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
        if output.cause_seq <= self._after_cause_seq:
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


class _Replay:
    """The fold of a recovery, with everything it leaves to be written."""

    def __init__(self, bus: Bus, fold: Fold, recorded: _Recorded, left_out: frozenset[int]) -> None:
        self._bus = bus
        self._left_out = left_out
        self.fold = fold
        self.recorded = recorded
        self.missing: list[Output] = []
        self.unreadable: list[DeadLetter] = []
        self.views: dict[tuple[str, str], View] = {}

    async def catch_up(self, decisions_to: int) -> None:
        """Read the decisions first: every input behind one of them is then in the input log."""
        await self.recorded.read_to(decisions_to)
        last_seq = (await self._bus.stream_state(INPUT)).last_seq
        if last_seq > self.fold.input_seq:
            from_seq = self.fold.input_seq + 1
            inputs = self._bus.read_until(INPUT, from_seq=from_seq, last_seq=last_seq)
            async with aclosing(inputs) as found:
                async for stored in found:
                    self._take(stored)
        self.missing = [output for output in self.missing if not self.recorded.take(output)]

    def _take(self, stored: StoredMessage) -> None:
        if stored.seq in self._left_out:
            self.fold.leave_out(stored)
            return
        step = self.fold.step(stored)
        self.missing += [output for output in step.outputs if not self.recorded.take(output)]
        self.views.update((view_key(view), view) for view in step.views)
        if step.unreadable is not None:
            self.unreadable.append(step.unreadable)


async def recover(
    bus: Bus, snapshots: list[Snapshot], *, core_type: CoreType, claim: Claim
) -> Recovered:
    """Rebuild the state and claim leadership; ``snapshots`` come newest first.

    Raises `RecoveryError`, `CoreFailedError`, `FencedError` when somebody else claimed meanwhile,
    and `BusError`.
    """
    inputs, decisions = await bus.stream_state(INPUT), await bus.stream_state(DECISIONS)
    fold, decision_seq = await _start(bus, snapshots, inputs, decisions, core_type)
    snapshot_seq = fold.input_seq
    recorded = _Recorded(bus, after_seq=decision_seq, after_cause_seq=snapshot_seq)
    replay = _Replay(bus, fold, recorded, await _left_out(bus, snapshot_seq))
    await replay.catch_up(decisions.last_seq)
    epoch = await claim(recorded.last_cause_seq)
    await replay.catch_up(epoch)
    if fold.input_seq < recorded.last_cause_seq:
        await _fill_up(bus, fold.input_seq, recorded.last_cause_seq, epoch)
        await replay.catch_up(epoch)
    recorded.close()
    replay.views.update((view_key(view), view) for view in fold.core.all_views())
    buried_seq = await dead_letters.last_unreadable_seq(bus)
    return Recovered(
        fold=fold,
        snapshot_seq=snapshot_seq,
        epoch=epoch,
        missing=replay.missing,
        unreadable=[letter for letter in replay.unreadable if letter.input_seq > buried_seq],
        views=list(replay.views.values()),
        divergences=recorded.divergences,
    )


async def _start(
    bus: Bus,
    snapshots: list[Snapshot],
    inputs: StreamState,
    decisions: StreamState,
    core_type: CoreType,
) -> tuple[Fold, int]:
    """Return the fold to begin with, and the decision up to which everything is in it."""
    fold, decision_seq = Fold(core_type()), 0
    for snapshot in snapshots:
        core = await _restored(bus, snapshot, inputs, decisions, core_type)
        if core is not None:
            fold = Fold(core, input_seq=snapshot.input_seq, input_at_ms=snapshot.input_at_ms)
            decision_seq = snapshot.decision_seq
            break
    if inputs.first_seq > fold.input_seq + 1:
        raise RecoveryError(
            f"inputs {fold.input_seq + 1} to {inputs.first_seq - 1} are gone from {INPUT} and no"
            " snapshot covers them: put a snapshot file back into the state folder"
        )
    return fold, decision_seq


async def _fill_up(bus: Bus, last_seq: int, lost_to_seq: int, epoch: int) -> None:
    """Use up the numbers of inputs that the server lost after we had decided on them.

    Given again, they would name two jobs alike and make new decisions look like old ones.
    """
    _log.error("the input log lost its end", extra={"from": last_seq + 1, "to": lost_to_seq})
    while last_seq < lost_to_seq:
        message_id = f"lost/{epoch}/{last_seq}"
        stored = await bus.append(_CLOCK, codec.encode(ClockAdvanced()), message_id=message_id)
        last_seq = stored.seq


async def _left_out(bus: Bus, after_seq: int) -> frozenset[int]:
    failed = await dead_letters.seqs_the_core_failed_on(bus)
    left_out = frozenset(seq for seq in failed if seq > after_seq)
    if len(left_out) > MAX_CORE_FAILURES:
        raise RecoveryError(
            f"the core failed on {len(left_out)} inputs since input {after_seq}, more than"
            f" {MAX_CORE_FAILURES}: read {dead_letters.CORE_FAILED}, then run a mended version"
        )
    return left_out


async def _restored(
    bus: Bus,
    snapshot: Snapshot,
    inputs: StreamState,
    decisions: StreamState,
    core_type: CoreType,
) -> Core | None:
    """Return the core of a snapshot, or None (with a warning) when it cannot be used."""
    problem = ""
    if snapshot.input_seq > inputs.last_seq or snapshot.decision_seq > decisions.last_seq:
        problem = "it is ahead of the log"
    elif not await _is_of_this_log(bus, snapshot, inputs):
        problem = "it is of another log"
    else:
        try:
            return core_type.restore(snapshot.core)
        except Exception as error:  # noqa: BLE001 (whatever is wrong with it, an older one may do)
            problem = f"{type(error).__name__}: {error}"
    _log.warning("snapshot skipped", extra={"input": snapshot.input_seq, "problem": problem})
    return None


async def _is_of_this_log(bus: Bus, snapshot: Snapshot, inputs: StreamState) -> bool:
    """Compare the log's time of the snapshot's last input; a purged one is taken on trust."""
    seq = snapshot.input_seq
    if seq < inputs.first_seq:
        return True
    async with aclosing(bus.read_until(INPUT, from_seq=seq, last_seq=seq)) as found:
        return [stored.at_ms async for stored in found] == [snapshot.input_at_ms]
