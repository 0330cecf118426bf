"""From stored logs back to a leading core, with nothing lost and nothing said twice.

1. The newest readable snapshot that belongs to this log, or an empty core.
2. The decisions recorded since, by id; then the inputs since, folded. Where the core fails, an
   older snapshot may do; where it fails from every start, the input is put aside for good.
3. Leadership is claimed: nobody else appends from here on. Step 2 again for what came meanwhile.
4. Outputs of the fold that are not recorded are left for the new leader to append: an earlier one
   died between deciding and recording.

A recorded decision that the fold does not give, or gives differently, is a divergence: it is
counted and logged, and the fold goes on, for the launchers' inventory sets nodes right.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import msgspec

from broker import codec, subjects
from broker.bus import Bus, StoredMessage, StreamState
from broker.errors import TiresiasError
from broker.schemas.base import Output
from broker.schemas.operator import ClockAdvanced
from broker.topology import DECISIONS, INPUT
from scheduler_svc import dead_letters
from scheduler_svc.dead_letters import DeadLetter
from scheduler_svc.fold import Core, CoreFailedError, Fold, View, view_key
from scheduler_svc.recorded import Recorded
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


class _Start(msgspec.Struct):
    """Where a fold may begin; all decisions up to ``decision_seq`` are in it."""

    fold: Fold
    decision_seq: int = 0


class _Replay:
    """The fold of a recovery, with everything it leaves to be written."""

    def __init__(self, bus: Bus, start: _Start, left_out: frozenset[int]) -> None:
        self._bus = bus
        self._left_out = left_out
        self.snapshot_seq = start.fold.input_seq
        self.fold = start.fold
        self.recorded = Recorded(
            bus, after_seq=start.decision_seq, after_cause_seq=self.snapshot_seq
        )
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

    Raises `RecoveryError`, `CoreFailedError` (start again: the input is left out then),
    `FencedError` when somebody else claimed meanwhile, and `BusError`.
    """
    inputs, decisions = await bus.stream_state(INPUT), await bus.stream_state(DECISIONS)
    starts = _starts(bus, snapshots, inputs, decisions, core_type)
    replay = await _first_replay(bus, starts, decisions.last_seq)
    fold, recorded = replay.fold, replay.recorded
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
        snapshot_seq=replay.snapshot_seq,
        epoch=epoch,
        missing=replay.missing,
        unreadable=[letter for letter in replay.unreadable if letter.input_seq > buried_seq],
        views=list(replay.views.values()),
        divergences=recorded.divergences,
    )


async def _first_replay(bus: Bus, starts: AsyncIterator[_Start], decisions_to: int) -> _Replay:
    """Fold from the newest start from which the core does not fail."""
    left_out = await dead_letters.seqs_the_core_failed_on(bus)
    failure: CoreFailedError | None = None
    async for start in starts:
        if failure is None:
            _check_failures(left_out, start.fold.input_seq)
        replay = _Replay(bus, start, left_out)
        try:
            await replay.catch_up(decisions_to)
        except CoreFailedError as error:
            _log.exception("fold failed", extra={"start": replay.snapshot_seq})
            failure = error
        else:
            return replay
    if failure is None:
        raise RecoveryError(
            f"the first inputs are gone from {INPUT} and no snapshot covers them: put a snapshot"
            " file back into the state folder"
        )
    await dead_letters.bury(bus, dead_letters.CORE_FAILED, failure.letter)
    raise failure


def _check_failures(left_out: frozenset[int], after_seq: int) -> None:
    count = sum(seq > after_seq for seq in left_out)
    if count > MAX_CORE_FAILURES:
        raise RecoveryError(
            f"the core failed on {count} inputs since input {after_seq}, more than"
            f" {MAX_CORE_FAILURES}: read {dead_letters.CORE_FAILED}, then run a mended version"
        )


async def _starts(
    bus: Bus,
    snapshots: list[Snapshot],
    inputs: StreamState,
    decisions: StreamState,
    core_type: CoreType,
) -> AsyncIterator[_Start]:
    """Yield where a fold may begin: usable snapshots, then an empty core if no input is gone."""
    for snapshot in snapshots:
        problem = await _mismatch(bus, snapshot, inputs, decisions)
        try:
            core = None if problem else core_type.restore(snapshot.core)
        except Exception as error:  # noqa: BLE001 (whatever is wrong with it, an older one may do)
            core, problem = None, f"{type(error).__name__}: {error}"
        if core is None:
            extra = {"input": snapshot.input_seq, "problem": problem}
            _log.warning("snapshot skipped", extra=extra)
        else:
            fold = Fold(core, input_seq=snapshot.input_seq, input_at_ms=snapshot.input_at_ms)
            yield _Start(fold, snapshot.decision_seq)
    if inputs.first_seq <= 1:
        yield _Start(Fold(core_type()))


async def _mismatch(
    bus: Bus, snapshot: Snapshot, inputs: StreamState, decisions: StreamState
) -> str:
    """Return why a snapshot does not fit the logs, or nothing.

    The log's time of its last input tells a log that was started anew; where that input is purged
    it is taken on trust.
    """
    seq = snapshot.input_seq
    if seq > inputs.last_seq or snapshot.decision_seq > decisions.last_seq:
        return "it is ahead of the log"
    if seq < inputs.first_seq:
        return "" if seq == inputs.first_seq - 1 else "inputs behind it are gone"
    async with aclosing(bus.read_until(INPUT, from_seq=seq, last_seq=seq)) as found:
        times_ms = [stored.at_ms async for stored in found]
    return "" if times_ms == [snapshot.input_at_ms] else "it is of another log"


async def _fill_up(bus: Bus, last_seq: int, lost_to_seq: int, epoch: int) -> None:
    """Use up the numbers of inputs that the server lost after we had decided on them.

    Given again, they would name two jobs alike and make new decisions look like old ones.
    """
    _log.error("the input log lost its end", extra={"from": last_seq + 1, "to": lost_to_seq})
    while last_seq < lost_to_seq:
        message_id = f"lost/{epoch}/{last_seq}"
        stored = await bus.append(_CLOCK, codec.encode(ClockAdvanced()), message_id=message_id)
        last_seq = stored.seq
