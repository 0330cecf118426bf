"""A pure mesh for tests of the core: launchers that obey at once, unless told not to."""

from collections.abc import Iterable

from broker.schemas.base import Input, Output
from broker.schemas.command import Command, PreemptRun, PrepareRun, StartRun, StopRun
from broker.schemas.job import JobCancelRequested, JobSpec, JobSubmitted
from broker.schemas.node import GpuInfo, NodeJoined
from broker.schemas.operator import ClockAdvanced, Settings
from broker.schemas.run import (
    InventoryReported,
    RunExited,
    RunPrepared,
    RunReport,
    RunStarted,
    StopReason,
    TaskExit,
)
from broker.schemas.views import JobView, NodeView
from scheduler_svc.core.scheduler import Scheduler

START_MS = 1_000_000


def spec(gpus: int = 1, **fields: object) -> JobSpec:
    """A job of ``gpus`` one-GPU workers, unless ``workers`` says otherwise."""
    fields = {"name": "job", "run": ("train",), "workers": gpus, **fields}
    return JobSpec(**fields)


class Mesh:
    """A scheduler with obedient launchers. ``deaf`` nodes keep commands until they listen."""

    def __init__(self, nodes: dict[str, int] | None = None, **settings: object) -> None:
        settings = {"preempt_exempt_ms": 0, "restart_backoff_ms": 1_000, **settings}
        self.core = Scheduler(Settings(**settings), is_checked=True)
        self.seq = 0
        self.now_ms = START_MS
        self.outputs: list[Output] = []
        self.deaf: set[str] = set()
        self.unheard: list[Command] = []
        self.saves = True
        self.views: dict[int | str, JobView | NodeView] = {}
        self.tasks: dict[str, PrepareRun] = {}
        self.boots: dict[str, str] = {}
        for node, gpus in (nodes or {}).items():
            self.join(node, gpus)

    def send(self, message: Input) -> int:
        """Give one input to the core, and let launchers obey what comes out."""
        self.seq += 1
        seq = self.seq
        outputs = self.core.handle(seq, message, self.now_ms)
        self.outputs += outputs
        for view in self.core.take_changed_views():
            self.views[view.job_id if isinstance(view, JobView) else view.node] = view
        for output in outputs:
            if isinstance(output, Command):
                self._deliver(output)
        return seq

    def _deliver(self, command: Command) -> None:
        if command.node in self.deaf:
            self.unheard.append(command)
        else:
            self.obey(command)

    def listen(self, *nodes: str) -> None:
        """Deaf nodes hear again, obey what they were told meanwhile, and report what they have."""
        self.deaf -= set(nodes)
        commands, self.unheard = self.unheard, []
        for command in commands:
            self._deliver(command)
        for node in nodes:
            self.report(node)

    def obey(self, command: Command) -> None:
        """Answer a command as a launcher does."""
        node, run_id = command.node, command.run_id
        if isinstance(command, PrepareRun):
            self.tasks[f"{run_id}/{node}"] = command
            if command.is_whole_gang:
                self.send(RunStarted(node=node, run_id=run_id, pids={}))
                return
            ports = {task.name: 20_000 + task.rank for task in command.tasks}
            self.send(RunPrepared(node=node, run_id=run_id, ports=ports))
        elif isinstance(command, StartRun):
            self.send(RunStarted(node=node, run_id=run_id, pids={}))
        elif isinstance(command, PreemptRun | StopRun) and f"{run_id}/{node}" in self.tasks:
            reason = StopReason.PREEMPT if isinstance(command, PreemptRun) else command.reason
            code = 75 if self.saves and reason is StopReason.PREEMPT else None
            self.exit(run_id, node, code=code, signal=None if code else 15, asked=reason)

    def exit(
        self,
        run_id: str,
        node: str,
        *,
        code: int | None = 0,
        signal: int | None = None,
        asked: StopReason | None = None,
    ) -> None:
        """Report the end of a run's tasks on one node; a second report changes nothing."""
        prepared = self.tasks.pop(f"{run_id}/{node}", None)
        tasks = prepared.tasks if prepared is not None else ()
        exits = tuple(
            TaskExit(task=task.name, rank=task.rank, exit_code=code, signal=signal)
            for task in tasks
        )
        self.send(RunExited(node=node, run_id=run_id, tasks=exits, asked=asked))

    def join(self, node: str, gpus: int, boot_id: str = "boot-1") -> None:
        """A node's agent and launcher come up; after a restart of the machine without any run."""
        infos = tuple(GpuInfo(gpu_id=f"{node}-gpu{i}", index=i) for i in range(gpus))
        self.send(NodeJoined(node=node, boot_id=boot_id, host=f"10.0.0.{node}", gpus=infos))
        if boot_id != self.boots.setdefault(node, boot_id):
            self.boots[node] = boot_id
            self.tasks = {key: run for key, run in self.tasks.items() if run.node != node}
        self.report(node)

    def report(self, node: str) -> None:
        """The node's launcher reports every run it has."""
        runs = tuple(
            RunReport(run_id=run.run_id, phase="running")
            for run in self.tasks.values()
            if run.node == node
        )
        self.send(InventoryReported(node=node, boot_id=self.boots[node], runs=runs))

    def submit(self, gpus: int = 1, **fields: object) -> int:
        """Submit a job; return its number."""
        return self.send(JobSubmitted(user="ann", spec=spec(gpus, **fields)))

    def cancel(self, job_id: int, *, force: bool = False) -> None:
        self.send(JobCancelRequested(job_id=job_id, user="ann", force=force))

    def finish(self, job_id: int, code: int = 0, signal: int | None = None) -> None:
        """Let every task of the job's run exit."""
        view = self.view(job_id)
        assert view.run_id is not None, view
        for node in list(view.placement):
            self.exit(view.run_id, node, code=None if signal else code, signal=signal)

    def advance(self, delta_ms: int) -> None:
        """Let time pass, waking the core at each of its deadlines."""
        target_ms = self.now_ms + delta_ms
        while (due_ms := self.core.next_deadline_ms()) is not None and due_ms <= target_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.send(ClockAdvanced())
        self.now_ms = target_ms

    def view(self, job_id: int) -> JobView:
        """The newest view of a job."""
        found = self.views[job_id]
        assert isinstance(found, JobView)
        return found

    def node(self, name: str) -> NodeView:
        """The newest view of a node."""
        found = self.views[name]
        assert isinstance(found, NodeView)
        return found

    def state(self, job_id: int) -> str:
        return self.view(job_id).state.value

    def states(self, *job_ids: int) -> list[str]:
        return [self.state(job_id) for job_id in job_ids]

    def kinds(self, output_types: Iterable[type[Output]]) -> list[Output]:
        """Outputs so far of the given types."""
        return [output for output in self.outputs if isinstance(output, tuple(output_types))]
