"""What a supervisor has written in ``status.jsonl``, folded into the state of its run.

That file is the single source of truth about a run's processes; everybody else only reads it.
"""

from collections.abc import Iterable

import msgspec

from broker.schemas.run import RunExited, StopReason, TaskExit
from launcher.core.outcome import seen_through_shell


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact"):
    """Base of the lines of a status file."""


class Supervising(Fact, frozen=True, kw_only=True, tag="supervising"):
    """A supervisor took the run; from here it may have started processes."""

    pid: int


class Started(Fact, frozen=True, kw_only=True, tag="started"):
    """All tasks were started; one that could not be has no process."""

    pids: dict[str, int]
    boot_ms: int = 0
    """When that was, since the machine's start."""


class Asked(Fact, frozen=True, kw_only=True, tag="asked"):
    """The tasks were asked from outside to stop."""

    reason: StopReason


class TaskEnded(Fact, frozen=True, kw_only=True, tag="exited"):
    """A task is gone and its log complete. No return code: it could not be killed."""

    task: str
    rank: int
    return_code: int | None
    stopped_by_us: bool


class Ended(Fact, frozen=True, kw_only=True, tag="ended"):
    """Nothing of the run is left, but ``leftover_pids``. Lost: the supervisor was killed."""

    leftover_pids: tuple[int, ...] = ()
    ask_to_exit_ms: int | None = None
    lost: bool = False


AnyFact = Supervising | Started | Asked | TaskEnded | Ended
_DECODER = msgspec.json.Decoder(AnyFact)


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run's processes."""

    is_supervised: bool = False
    started: Started | None = None
    asked: StopReason | None = None
    exits: tuple[TaskEnded, ...] = ()
    ended: Ended | None = None

    def is_task_over(self, task: str) -> bool:
        """Whether nothing will be added to the task's log."""
        return self.ended is not None or any(each.task == task for each in self.exits)


def read_facts(text: bytes) -> list[AnyFact]:
    """Read the complete lines; a torn last line, or one of a newer version, is left out."""
    facts: list[AnyFact] = []
    for line in text.split(b"\n")[:-1]:
        try:
            facts.append(_DECODER.decode(line))
        except msgspec.MsgspecError:
            continue
    return facts


def fold(facts: Iterable[AnyFact]) -> RunStatus:
    """Fold the facts in their order; of facts that come once the first stays."""
    is_supervised, started, asked, ended = False, None, None, None
    exits: list[TaskEnded] = []
    for fact in facts:
        match fact:
            case Supervising():
                is_supervised = True
            case Started():
                started = started or fact
            case Asked():
                asked = asked or fact.reason
            case TaskEnded():
                exits.append(fact)
            case _:
                ended = ended or fact
    return RunStatus(
        is_supervised=is_supervised, started=started, asked=asked, exits=tuple(exits), ended=ended
    )


def exit_report(node: str, run_id: str, status: RunStatus, ended: Ended) -> RunExited:
    """Return the report of a run that is over."""
    return RunExited(
        node=node,
        run_id=run_id,
        tasks=tuple(_task_exit(each) for each in status.exits),
        asked=status.asked,
        lost=ended.lost,
        leftover_pids=ended.leftover_pids,
        ask_to_exit_ms=ended.ask_to_exit_ms,
    )


def _task_exit(each: TaskEnded) -> TaskExit:
    code = each.return_code
    if code is not None:
        code = seen_through_shell(code, was_asked=each.stopped_by_us)
    is_signal = code is not None and code < 0
    return TaskExit(
        task=each.task,
        rank=each.rank,
        exit_code=None if is_signal else code,
        signal=-code if code is not None and is_signal else None,
        stopped_by_us=each.stopped_by_us,
    )
