"""One input at a time into the core: the same step at recovery and while leading."""

from typing import Protocol

import msgspec

from broker import codec, subjects
from broker.bus import StoredMessage
from broker.errors import TiresiasError
from broker.ids import checked_token
from broker.schemas.base import Input, Output
from broker.schemas.operator import Settings
from broker.schemas.views import Explanation, JobView, NodeView
from broker.topology import JOBS, NODES
from scheduler_svc.dead_letters import DeadLetter, dead_letter_of

View = JobView | NodeView


def view_key(view: View) -> tuple[str, str]:
    """Return the bucket and the key of a view."""
    match view:
        case JobView():
            return JOBS, str(view.job_id)
        case NodeView():
            return NODES, view.node


class Core(Protocol):
    """The scheduler core as the shell uses it (`scheduler_svc.core.scheduler.Scheduler`)."""

    @property
    def now_ms(self) -> int: ...

    @property
    def settings(self) -> Settings: ...

    def handle(self, seq: int, message: Input, at_ms: int) -> list[Output]: ...

    def next_deadline_ms(self) -> int | None: ...

    def take_changed_views(self) -> list[View]: ...

    def all_views(self) -> list[View]: ...

    def explain(self, job_id: int, now_ms: int = 0) -> Explanation | None: ...

    def snapshot(self) -> bytes: ...


def _decoded(stored: StoredMessage) -> Input:
    """Read an input; raises `CodecError`, or `InvalidIdError` where its source has no valid name.

    A name that cannot stand in a subject of ours could never be told anything.
    """
    for token in subjects.tokens_after_prefix(stored.subject):
        checked_token("part of a subject", token)
    return codec.decode_input(stored.subject, stored.data)


class CoreFailedError(TiresiasError):
    """The core raised on an input: a defect of ours. Its state is no longer to be trusted."""

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(f"the core failed on input {letter.input_seq}: {letter.error}")
        self.letter = letter


class Step(msgspec.Struct, frozen=True):
    """What one input led to. ``message`` is None where it could not be read."""

    message: Input | None = None
    outputs: list[Output] = []
    views: list[View] = []
    unreadable: DeadLetter | None = None


class Fold:
    """A core and the input it has come to."""

    def __init__(self, core: Core, *, input_seq: int = 0, input_at_ms: int = 0) -> None:
        self.core = core
        self.input_seq = input_seq
        self.input_at_ms = input_at_ms

    def leave_out(self, stored: StoredMessage) -> None:
        """Pass over an input that the core failed on before."""
        self.input_seq, self.input_at_ms = stored.seq, stored.at_ms

    def step(self, stored: StoredMessage) -> Step:
        """Take the next input of the log; raises `CoreFailedError`.

        Views are taken after every input, never in bulk: what the core forgets, and when, is then
        the same in every fold of the log.
        """
        self.leave_out(stored)
        try:
            message = _decoded(stored)
        except TiresiasError as error:
            return Step(unreadable=dead_letter_of(stored, error))
        try:
            outputs = self.core.handle(stored.seq, message, max(stored.at_ms, self.core.now_ms))
            return Step(message, outputs, self.core.take_changed_views())
        except Exception as error:
            raise CoreFailedError(dead_letter_of(stored, error)) from error
