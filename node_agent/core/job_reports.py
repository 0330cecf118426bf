"""What a training job says of itself, line by line, and what of it the scheduler should know.

Each line of a job's connection is JSON with a ``type``; the first is ``hello``. Progress is kept,
the newest per run; a rank is heard unless a lower one has spoken. Saves, the resume and the
tensors become inputs only from rank 0 or the chief. A type of the future is counted, not refused;
a line that breaks the rules raises `MalformedLineError` and costs the job its connection.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from broker.errors import TiresiasError
from broker.ids import InvalidIdError, split_run_id
from broker.schemas.node import RunProgress
from broker.schemas.run import RunCheckpointed, RunResumed, TensorsObserved

MAX_LINE_BYTES = 1024 * 1024
SAVE_PERIOD_MS = 10_000
FORGET_AFTER_MS = 60_000
MAX_ASKED_SAVES = 16
MAX_RUNS = 256
MAX_METRICS = 32
MAX_METRIC_NAME = 64

Count = Annotated[int, Meta(ge=0, le=2**53)]
T = TypeVar("T", bound=msgspec.Struct)
Report = RunCheckpointed | RunResumed | TensorsObserved


class MalformedLineError(TiresiasError):
    """A job's line is not what the protocol says."""


class _Line(msgspec.Struct, frozen=True):
    type: str


class Hello(msgspec.Struct, frozen=True):
    """Who speaks on this connection."""

    run_id: Annotated[str, Meta(max_length=64)]
    task: Annotated[str, Meta(min_length=1, max_length=64)]
    rank: Annotated[int, Meta(ge=0, lt=65_536)]


class Progress(msgspec.Struct, frozen=True):
    """A step is done. Of the metrics only the first few that are numbers are kept."""

    step: Count
    total_steps: Count | None = None
    metrics: dict[str, float | None] = {}


class Tensors(msgspec.Struct, frozen=True):
    """Sizes of the trainable tensors."""

    tensor_bytes: Annotated[tuple[Count, ...], Meta(max_length=50_000)]


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint is complete on disk."""

    step: Count
    path: Annotated[str, Meta(max_length=4096)] = ""
    save_ms: Count = 0
    size_bytes: Count = 0
    asked: bool = False


class Resumed(msgspec.Struct, frozen=True):
    """The first step of the run is done."""

    step: Count
    restore_ms: Count = 0
    first_step_ms: Count = 0


class Outgoing(msgspec.Struct, frozen=True):
    """An input for the scheduler, and the id under which a retry is the same message."""

    message: Report
    message_id: str


_LINE = msgspec.json.Decoder(_Line)
_HELLO = msgspec.json.Decoder(Hello)
_SAYINGS: Mapping[str, msgspec.json.Decoder[Progress | Tensors | Saved | Resumed]] = {
    "progress": msgspec.json.Decoder(Progress),
    "tensors": msgspec.json.Decoder(Tensors),
    "saved": msgspec.json.Decoder(Saved),
    "resumed": msgspec.json.Decoder(Resumed),
}


class _Run(msgspec.Struct):
    """What is remembered of a run that has, or lately had, connections."""

    connections: int = 0
    closed_at_ms: int = 0
    progress: RunProgress | None = None
    progress_rank: int = 0
    periodic_save_at_ms: int | None = None
    asked_saves: int = 0
    told: set[str] = msgspec.field(default_factory=set)


class JobBook:
    """All runs heard on this node. Times are monotonic, except ``at_ms`` of progress."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._runs: dict[str, _Run] = {}
        self.unknown_lines = 0
        """Lines of a type that this version does not know."""

    def open(self, line: bytes) -> Hello:
        """Read the first line of a connection; pass what it returns to `hear` and `close`."""
        if _type_of(line) != "hello":
            raise MalformedLineError("the first line is not a hello")
        hello = _decoded(_HELLO, line)
        try:
            split_run_id(hello.run_id)
        except InvalidIdError as error:
            raise MalformedLineError(str(error)) from error
        if hello.run_id not in self._runs and len(self._runs) >= MAX_RUNS:
            self._forget_oldest()
        self._runs.setdefault(hello.run_id, _Run()).connections += 1
        return hello

    def hear(self, hello: Hello, line: bytes, *, now_ms: int, monotonic_ms: int) -> Outgoing | None:
        """Take one line in; return what the scheduler should know, if anything."""
        decoder = _SAYINGS.get(_type_of(line))
        if decoder is None:
            self.unknown_lines += 1
            return None
        saying = _decoded(decoder, line)
        run = self._runs[hello.run_id]
        if isinstance(saying, Progress):
            _keep_progress(run, hello, saying, now_ms)
            return None
        if hello.rank != 0 and not hello.task.startswith("chief-"):
            return None
        if isinstance(saying, Saved):
            return self._saved(run, hello.run_id, saying, monotonic_ms)
        return self._told_once(run, hello.run_id, saying)

    def close(self, hello: Hello, monotonic_ms: int) -> None:
        """A connection ended."""
        run = self._runs[hello.run_id]
        run.connections -= 1
        run.closed_at_ms = monotonic_ms

    def progress(self, monotonic_ms: int) -> tuple[RunProgress, ...]:
        """Return the newest progress of each run; forget runs that are gone for a while."""
        self._runs = {
            run_id: run
            for run_id, run in self._runs.items()
            if run.connections or monotonic_ms - run.closed_at_ms < FORGET_AFTER_MS
        }
        return tuple(run.progress for run in self._runs.values() if run.progress)

    def _forget_oldest(self) -> None:
        """Make room for one run more: a burst of short jobs must not shut out the next one."""
        closed = [run_id for run_id, run in self._runs.items() if not run.connections]
        if not closed:
            raise MalformedLineError(f"more than {MAX_RUNS} runs speak on this node")
        del self._runs[min(closed, key=lambda run_id: self._runs[run_id].closed_at_ms)]

    def _saved(self, run: _Run, run_id: str, saved: Saved, monotonic_ms: int) -> Outgoing | None:
        if saved.asked:
            if run.asked_saves >= MAX_ASKED_SAVES:
                return None
            run.asked_saves += 1
        else:
            last_ms = run.periodic_save_at_ms
            if last_ms is not None and monotonic_ms - last_ms < SAVE_PERIOD_MS:
                return None
            run.periodic_save_at_ms = monotonic_ms
        message = RunCheckpointed(node=self._node, run_id=run_id, **msgspec.structs.asdict(saved))
        what = "asked" if saved.asked else "saved"
        return Outgoing(message, f"{run_id}/{self._node}/{what}-{saved.step}")

    def _told_once(self, run: _Run, run_id: str, saying: Tensors | Resumed) -> Outgoing | None:
        what = "resumed" if isinstance(saying, Resumed) else "tensors"
        if what in run.told:
            return None
        run.told.add(what)
        kind = RunResumed if isinstance(saying, Resumed) else TensorsObserved
        message = kind(node=self._node, run_id=run_id, **msgspec.structs.asdict(saying))
        return Outgoing(message, f"{run_id}/{self._node}/{what}")


def _keep_progress(run: _Run, hello: Hello, said: Progress, now_ms: int) -> None:
    if run.progress is not None and hello.rank > run.progress_rank:
        return
    run.progress_rank = hello.rank
    run.progress = RunProgress(
        run_id=hello.run_id,
        step=said.step,
        total_steps=said.total_steps,
        metrics=dict(islice(_numbers(said), MAX_METRICS)),
        at_ms=now_ms,
    )


def _numbers(said: Progress) -> Iterator[tuple[str, float]]:
    for name, value in said.metrics.items():
        if value is not None and len(name) <= MAX_METRIC_NAME:
            yield name, value


def _type_of(line: bytes) -> str:
    return _decoded(_LINE, line).type


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedLineError(str(error)) from error
