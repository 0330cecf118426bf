"""The runs of one launcher, folded from its journal, and what each command means in each phase.

A run is known from its preparation until its `RunExited` is recorded. After that its id is
remembered, so that a command delivered again does nothing.
"""

from enum import StrEnum
from functools import cache
from itertools import islice

import msgspec

from broker.schemas.base import tag_of
from broker.schemas.command import AnyCommand, PrepareRun, StartRun
from broker.schemas.run import (
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunReport,
    RunStarted,
    StopReason,
)

REMEMBERED_RUNS = 10_000
"""Ended runs whose late commands are still recognised."""

Report = RunPrepared | RunPrepareRefused | RunStarted | RunExited


class Phase(StrEnum):
    """Where a run stands on this node."""

    PREPARED = "prepared"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Step(StrEnum):
    """What moves a run from phase to phase."""

    START = "start"
    UP = "up"
    STOP = "stop"
    EXIT = "exit"


TRANSITIONS: dict[tuple[Phase, Step], Phase] = {
    (Phase.PREPARED, Step.START): Phase.STARTING,
    (Phase.PREPARED, Step.EXIT): Phase.ENDED,
    (Phase.STARTING, Step.UP): Phase.RUNNING,
    (Phase.STARTING, Step.STOP): Phase.STOPPING,
    (Phase.STARTING, Step.EXIT): Phase.ENDED,
    (Phase.RUNNING, Step.STOP): Phase.STOPPING,
    (Phase.RUNNING, Step.EXIT): Phase.ENDED,
    (Phase.STOPPING, Step.EXIT): Phase.ENDED,
}
"""All moves; a step that is not here changes nothing."""


class Action(StrEnum):
    """What to do about a command."""

    PREPARE = "prepare"
    START = "start"
    STOP = "stop"
    END_UNSTARTED = "end_unstarted"
    REFUSE_UNPREPARED = "refuse_unprepared"
    REPORT_LOST = "report_lost"
    """Asked to stop a run that nobody here has heard of: it is surely not here."""
    NOTHING = "nothing"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """Base of the lines of the journal."""


class BootSeen(Record, frozen=True, kw_only=True, tag="boot"):
    """From here on the machine runs under this boot id."""

    boot_id: str


class EpochSeen(Record, frozen=True, kw_only=True, tag="epoch"):
    """A leader of this epoch has commanded."""

    epoch: int


class RunKept(Record, frozen=True, kw_only=True, tag="prepared"):
    """Devices and ports are reserved for the run.

    With a ``cluster``, its supervisor is about to be started, too: the whole gang is here.
    """

    prepare: PrepareRun
    ports: dict[str, int]
    cluster: dict[str, tuple[str, ...]] = {}


class StartIntended(Record, frozen=True, kw_only=True, tag="start"):
    """The run's supervisor is about to be started."""

    run_id: str
    cluster: dict[str, tuple[str, ...]]


class StopIntended(Record, frozen=True, kw_only=True, tag="stop"):
    """The run's tasks are about to be asked to stop."""

    run_id: str
    reason: StopReason
    grace_ms: int


class ReportMade(Record, frozen=True, kw_only=True, tag="report"):
    """A result that the scheduler must learn."""

    report: Report


class ReportDelivered(Record, frozen=True, kw_only=True, tag="delivered"):
    """The oldest report of the run is in the input log."""

    run_id: str


class Run(msgspec.Struct, kw_only=True):
    """A run that holds devices and ports here."""

    prepare: PrepareRun
    ports: dict[str, int]
    phase: Phase = Phase.PREPARED
    cluster: dict[str, tuple[str, ...]] = {}
    asked: StopReason | None = None
    grace_ms: int = 0

    def move(self, step: Step) -> None:
        """Take the step where the table has it."""
        self.phase = TRANSITIONS.get((self.phase, step), self.phase)

    @property
    def has_processes(self) -> bool:
        """Whether a supervisor was, or may have been, started."""
        return self.phase is not Phase.PREPARED


class Book(msgspec.Struct, kw_only=True, tag_field="record", tag="book"):
    """Everything a launcher must not forget; also the first line of a compacted journal."""

    boot_id: str = ""
    epoch: int = 0
    runs: dict[str, Run] = {}
    undelivered: dict[str, list[Report]] = {}
    over: dict[str, None] = {}

    def apply(self, record: "AnyRecord") -> None:
        """Fold one record in."""
        match record:
            case BootSeen():
                self.boot_id = record.boot_id
            case EpochSeen():
                self.epoch = max(self.epoch, record.epoch)
            case RunKept():
                self._keep(record)
            case StartIntended():
                self._start(record)
            case StopIntended():
                self._stop(record)
            case ReportMade():
                self._report(record.report)
            case _:
                self._deliver(record.run_id)

    def is_stale(self, epoch: int, seq: int) -> bool:
        """Whether a command was sent by a leader after a newer one had taken over.

        An epoch is the sequence of the leader's record in the same stream as the commands, so an
        older leader's command that lies before it was valid and is only delivered late.
        """
        return epoch < self.epoch < seq

    def action_for(self, command: AnyCommand) -> Action:
        """Say what to do about a command; delivering it again never doubles an effect."""
        run_id = command.run_id
        run = self.runs.get(run_id)
        is_over = run_id in self.over
        if isinstance(command, PrepareRun):
            return Action.NOTHING if run is not None or is_over else Action.PREPARE
        if run is None:
            return Action.NOTHING if is_over else _action_for_unknown(command)
        if isinstance(command, StartRun):
            return Action.START if run.phase is Phase.PREPARED else Action.NOTHING
        return Action.STOP if run.has_processes else Action.END_UNSTARTED

    def inventory(self) -> tuple[RunReport, ...]:
        """List the runs that are here, or whose exit the scheduler has not heard of yet."""
        shown = {Phase.STARTING: Phase.RUNNING}
        phases = {run_id: shown.get(run.phase, run.phase) for run_id, run in self.runs.items()}
        for run_id, reports in self.undelivered.items():
            if any(isinstance(report, RunExited) for report in reports):
                phases[run_id] = Phase.STOPPING
        return tuple(RunReport(run_id=run_id, phase=phase) for run_id, phase in phases.items())

    def _keep(self, record: RunKept) -> None:
        prepare = record.prepare
        run = Run(prepare=prepare, ports=record.ports, cluster=record.cluster)
        self.runs[prepare.run_id] = run
        if record.cluster:
            run.move(Step.START)
        else:
            self._report(RunPrepared(node=prepare.node, run_id=prepare.run_id, ports=record.ports))

    def _start(self, record: StartIntended) -> None:
        if run := self.runs.get(record.run_id):
            run.move(Step.START)
            run.cluster = record.cluster

    def _stop(self, record: StopIntended) -> None:
        if run := self.runs.get(record.run_id):
            run.grace_ms = (
                record.grace_ms if run.asked is None else min(run.grace_ms, record.grace_ms)
            )
            run.asked = record.reason
            run.move(Step.STOP)

    def _report(self, report: Report) -> None:
        run = self.runs.get(report.run_id)
        if isinstance(report, RunStarted) and run is not None:
            run.move(Step.UP)
        if isinstance(report, RunExited | RunPrepareRefused):
            self.runs.pop(report.run_id, None)
            self._remember(report.run_id)
        self.undelivered.setdefault(report.run_id, []).append(report)

    def _deliver(self, run_id: str) -> None:
        reports = self.undelivered.get(run_id, [])
        del reports[:1]
        if not reports:
            self.undelivered.pop(run_id, None)

    def _remember(self, run_id: str) -> None:
        self.over[run_id] = None
        for oldest in list(islice(self.over, max(0, len(self.over) - REMEMBERED_RUNS))):
            del self.over[oldest]


AnyRecord = (
    BootSeen | EpochSeen | RunKept | StartIntended | StopIntended | ReportMade | ReportDelivered
)


def report_kind(report: Report) -> str:
    """The last token of a report's subject and message id, for example ``exited``."""
    return _last_token(type(report))


@cache
def _last_token(kind: type[Report]) -> str:
    return tag_of(kind).rpartition(".")[2]


def _action_for_unknown(command: AnyCommand) -> Action:
    return Action.REFUSE_UNPREPARED if isinstance(command, StartRun) else Action.REPORT_LOST
