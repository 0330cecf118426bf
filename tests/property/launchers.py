"""A launcher as the core sees it: a ledger of runs, a queue of commands, honest reports."""

from collections import deque

import msgspec

from broker.schemas.base import Input
from broker.schemas.command import Command, PreemptRun, PrepareRun, StartRun, StopRun, TaskPlacement
from broker.schemas.run import (
    PrepareRefusal,
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunReport,
    RunStarted,
    StopReason,
    TaskExit,
)

SAVED, KILLED, CHIEF_SAVED, CRASHED, FINISHED = range(5)


class LiveRun(msgspec.Struct):
    """A run in a launcher's ledger."""

    tasks: tuple[TaskPlacement, ...]
    is_started: bool = False
    stop_reason: StopReason | None = None

    def gpu_ids(self) -> set[str]:
        return {gpu_id for task in self.tasks for gpu_id in task.gpu_ids}


class Launcher:
    """Takes commands one by one; ``refuses_next`` makes it refuse, ``is_deaf`` makes it wait."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.pending: deque[Command] = deque()
        self.runs: dict[str, LiveRun] = {}
        self.is_deaf = False
        self.refuses_next = False
        self.manner = SAVED

    def obey(self) -> list[Input]:
        """Carry out the oldest command; return what is reported."""
        command = self.pending.popleft()
        run = self.runs.get(command.run_id)
        if isinstance(command, PrepareRun):
            return [self._prepare(command)]
        if isinstance(command, StartRun):
            return [self._start(command, run)]
        assert isinstance(command, PreemptRun | StopRun)
        if run is None:
            return []
        run.stop_reason = StopReason.PREEMPT if isinstance(command, PreemptRun) else command.reason
        return [self.exit(command.run_id, self.manner)]

    def exit(self, run_id: str, manner: int, *, code: int | None = None) -> RunExited:
        """Let the run end here; ``code`` is that of tasks that ended of themselves."""
        run = self.runs.pop(run_id)
        tasks = run.tasks if run.is_started else ()
        exits = tuple(
            TaskExit(task=task.name, rank=task.rank, exit_code=code, signal=None)
            if code is not None
            else _asked_exit(task, manner)
            for task in tasks
        )
        return RunExited(node=self.node, run_id=run_id, tasks=exits, asked=run.stop_reason)

    def reports(self) -> tuple[RunReport, ...]:
        """Every run it has."""
        return tuple(
            RunReport(run_id=run_id, phase="running" if run.is_started else "prepared")
            for run_id, run in self.runs.items()
        )

    def _prepare(self, command: PrepareRun) -> Input:
        wanted = {gpu_id for task in command.tasks for gpu_id in task.gpu_ids}
        owners = {
            gpu_id: run_id
            for run_id, run in self.runs.items()
            for gpu_id in sorted(wanted & run.gpu_ids())
        }
        if owners or self.refuses_next:
            self.refuses_next = False
            reason = PrepareRefusal.GPU_BUSY if owners else PrepareRefusal.NO_PORTS
            return RunPrepareRefused(
                node=self.node, run_id=command.run_id, reason=reason, owners=owners
            )
        self.runs[command.run_id] = LiveRun(command.tasks, is_started=command.is_whole_gang)
        if command.is_whole_gang:
            return RunStarted(node=self.node, run_id=command.run_id, pids={})
        ports = {task.name: 20_000 + task.rank for task in command.tasks}
        return RunPrepared(node=self.node, run_id=command.run_id, ports=ports)

    def _start(self, command: StartRun, run: LiveRun | None) -> Input:
        if run is None:
            return RunPrepareRefused(
                node=self.node, run_id=command.run_id, reason=PrepareRefusal.NOT_PREPARED
            )
        run.is_started = True
        return RunStarted(node=self.node, run_id=command.run_id, pids={})


def _asked_exit(task: TaskPlacement, manner: int) -> TaskExit:
    code: int | None
    is_first = task.rank == 0
    code, signal = {
        SAVED: (75, None),
        KILLED: (None, 15),
        CHIEF_SAVED: (75, None) if is_first else (None, 9),
        CRASHED: (1, None) if is_first else (None, 15),
        FINISHED: (0, None),
    }[manner]
    return TaskExit(
        task=task.name, rank=task.rank, exit_code=code, signal=signal, stopped_by_us=True
    )
