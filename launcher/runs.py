"""The life of runs on this node: commands in, processes asked for, reports out.

Every step is journalled before its effect and safe to repeat: what a killed launcher had begun,
the next one finishes, and no command has its effect twice.
"""

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakValueDictionary

from broker.clock import Clock
from broker.schemas.command import AnyCommand, PreemptRun, PrepareRun, StartRun, StopRun
from broker.schemas.run import (
    PrepareRefusal,
    RunExited,
    RunPrepareRefused,
    RunStarted,
    StopReason,
)
from launcher.config import LauncherConfig
from launcher.core.gpu_ledger import GpuLedger
from launcher.core.run_state import (
    Action,
    AnyRecord,
    BootSeen,
    Phase,
    Report,
    ReportMade,
    Run,
    RunKept,
    StartIntended,
    StopIntended,
)
from launcher.core.run_status import Started, exit_report
from launcher.core.task_plan import NodePaths, build_plan, local_cluster, local_tasks
from launcher.journal import Journal
from launcher.metrics import LauncherMetrics
from launcher.ports import PortPool
from launcher.put_aside import PutAside
from launcher.reporter import Reporter
from launcher.run_folder import BELL
from launcher.supervisors import Supervisors

logger = logging.getLogger(__name__)

_SPAWN_AGAIN_MS = 2_000
"""A plan that a dying spawner swallowed is sent again after this long."""
_SPAWN_LIMIT_MS = 10_000
"""A run whose supervisor has not shown up after this long is lost."""


class RunKeeper:
    """All runs of the node. Runs are independent; within one run everything is in order."""

    def __init__(
        self,
        *,
        config: LauncherConfig,
        clock: Clock,
        journal: Journal,
        ports: PortPool,
        supervisors: Supervisors,
        put_aside: PutAside,
        reporter: Reporter,
        metrics: LauncherMetrics,
        is_cut_off: Callable[[], bool],
    ) -> None:
        """``is_cut_off`` tells whether the lease is over; nothing is started then."""
        self._config = config
        self._clock = clock
        self._journal = journal
        self._book = journal.book
        self._ports = ports
        self._supervisors = supervisors
        self._put_aside = put_aside
        self._reporter = reporter
        self._metrics = metrics
        self._is_cut_off = is_cut_off
        self._runs_dir, self._checkpoint_root = str(config.runs_dir), str(config.checkpoint_root)
        self._job_socket, self._bell = str(config.run_dir / "job.sock"), str(config.run_dir / BELL)
        self._gpus = GpuLedger()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._start_arrived_ms: dict[str, int] = {}
        self._spawned_ms: dict[str, int] = {}

    async def adopt(self, boot_id: str) -> None:
        """Take over what an earlier launcher left, from the journal and the run folders."""
        is_rebooted = self._book.boot_id not in ("", boot_id)
        self._journal.record(BootSeen(boot_id=boot_id))
        for run_id, run in list(self._book.runs.items()):
            self._gpus.claim(run_id, _gpu_ids(run.prepare))
            is_kept = not is_rebooted and self._ports.retake(
                run_id, run.ports.values(), hold=not run.has_processes
            )
            if not is_kept:
                await self._conclude(RunExited(node=run.prepare.node, run_id=run_id, lost=True))
            elif run.has_processes:
                self._spawned_ms[run_id] = self._clock.monotonic_ms() - _SPAWN_AGAIN_MS
        await self.look_after_all()
        self._reporter.post_all()

    async def obey(self, command: AnyCommand) -> None:
        """Carry out a command; when this returns, nothing about it can be forgotten."""
        arrived_ms = self._clock.monotonic_ms()
        async with self._lock(command.run_id):
            action = self._book.action_for(command)
            logger.debug("%s for run %s: %s", type(command).__name__, command.run_id, action)
            match command:
                case PrepareRun() if action is Action.PREPARE:
                    await self._prepare(command, arrived_ms)
                case StartRun() if action is Action.START:
                    await self._start(command, arrived_ms)
                case StartRun() if action is Action.REFUSE_UNPREPARED:
                    await self._refuse(command, PrepareRefusal.NOT_PREPARED, "")
                case PreemptRun() | StopRun() if action is Action.STOP:
                    await self._stop(command.run_id, _reason_of(command), command.grace_ms)
                case PreemptRun() | StopRun() if action is not Action.NOTHING:
                    await self._conclude(
                        RunExited(
                            node=command.node,
                            run_id=command.run_id,
                            asked=_reason_of(command),
                            lost=action is Action.REPORT_LOST,
                        )
                    )

    async def call_off(self, command: AnyCommand, stop: PreemptRun | StopRun) -> None:
        """An order to start was withdrawn before we came to it: nothing of it is ever here."""
        async with self._lock(command.run_id):
            if self._book.action_for(command) is Action.PREPARE:
                exited = RunExited(node=command.node, run_id=command.run_id, asked=_reason_of(stop))
                await self._conclude(exited)

    async def stop_all(self, reason: StopReason, grace_limit_ms: int | None = None) -> None:
        """Ask every run to stop, and end those that have not started."""
        for run_id in list(self._book.runs):
            async with self._lock(run_id):
                run = self._book.runs.get(run_id)
                if run is None or run.asked is reason:
                    continue
                node, grace_ms = run.prepare.node, run.prepare.spec.grace_ms
                if run.has_processes:
                    await self._stop(run_id, reason, min(grace_ms, grace_limit_ms or grace_ms))
                else:
                    await self._conclude(RunExited(node=node, run_id=run_id, asked=reason))

    async def refresh(self, run_id: str) -> None:
        """Report what the run's status tells and was not reported yet."""
        async with self._lock(run_id):
            run = self._book.runs.get(run_id)
            if run is None or not run.has_processes:
                return
            status = self._supervisors.status(run_id)
            if status.started is not None and run.phase is Phase.STARTING:
                self._report_started(run_id, run, status.started)
            if status.ended is not None:
                await self._conclude(exit_report(run.prepare.node, run_id, status, status.ended))
            elif run.asked is not None and status.asked is None:
                self._ask(run_id, run.asked, run.grace_ms)

    async def look_after_all(self) -> None:
        """Find runs whose supervisor died or never came up, and news whose bell was not heard."""
        for run_id in list(self._book.runs):
            await self.look_after(run_id)

    async def look_after(self, run_id: str) -> None:
        """See whether the run's supervisor lives, and report what there is to report."""
        run = self._book.runs.get(run_id)
        if run is not None and run.has_processes:
            await self._bury_or_spawn(run_id)
            await self.refresh(run_id)

    async def give_up(self, run_id: str) -> None:
        """Count the run as lost, because its supervisor could not be forked."""
        async with self._lock(run_id):
            if run_id in self._book.runs:
                await self._supervisors.bury(run_id)
        await self.refresh(run_id)

    async def _bury_or_spawn(self, run_id: str) -> None:
        status = self._supervisors.status(run_id)
        if status.ended is not None:
            return
        if status.is_supervised:
            if not self._supervisors.is_alive(run_id):
                logger.warning("the supervisor of run %s is gone; killing what it left", run_id)
                await self._supervisors.bury(run_id)
            return
        now_ms = self._clock.monotonic_ms()
        waited_ms = now_ms - self._spawned_ms.setdefault(run_id, now_ms)
        if waited_ms >= _SPAWN_LIMIT_MS:
            await self._supervisors.bury(run_id)
        elif waited_ms >= _SPAWN_AGAIN_MS and (run := self._book.runs.get(run_id)):
            await self._spawn(run)

    async def _prepare(self, command: PrepareRun, arrived_ms: int) -> None:
        run_id = command.run_id
        gpu_ids = _gpu_ids(command)
        if owners := self._gpus.conflicts(run_id, gpu_ids):
            await self._refuse(command, PrepareRefusal.GPU_BUSY, "", owners)
            return
        ports = self._ports.reserve(run_id, [task.name for task in local_tasks(command)])
        if ports is None:
            detail = f"ports {self._config.first_port} to {self._config.last_port} are in use"
            await self._refuse(command, PrepareRefusal.NO_PORTS, detail)
            return
        try:
            self._supervisors.create_folder(run_id)
        except OSError as error:
            self._ports.release(run_id)
            await self._refuse(command, PrepareRefusal.NO_SPACE, str(error))
            return
        self._gpus.claim(run_id, gpu_ids)
        if command.is_whole_gang:
            cluster = local_cluster(command, ports)
            kept = RunKept(prepare=command, ports=ports, cluster=cluster)
            await self._begin(command, kept, arrived_ms)
        else:
            await self._commit(RunKept(prepare=command, ports=ports), run_id)

    async def _start(self, command: StartRun, arrived_ms: int) -> None:
        intended = StartIntended(run_id=command.run_id, cluster=command.cluster)
        await self._begin(command, intended, arrived_ms)

    async def _begin(
        self, command: PrepareRun | StartRun, record: RunKept | StartIntended, arrived_ms: int
    ) -> None:
        """Start the run's supervisor once the intent is on the disk; cut off, end the run."""
        run_id = command.run_id
        if self._is_cut_off():
            exited = RunExited(node=command.node, run_id=run_id, asked=StopReason.LEASE)
            await self._conclude(exited)
            return
        self._start_arrived_ms[run_id] = arrived_ms
        self._journal.record(record)
        await self._journal.sync()
        self._ports.let_go(run_id)
        await self._spawn(self._book.runs[run_id])

    async def _spawn(self, run: Run) -> None:
        run_id = run.prepare.run_id
        self._spawned_ms.setdefault(run_id, self._clock.monotonic_ms())
        plan = build_plan(
            run.prepare, run.cluster, self._paths(run.prepare), self._config.log_limits
        )
        await self._supervisors.spawn(plan)

    async def _stop(self, run_id: str, reason: StopReason, grace_ms: int) -> None:
        self._journal.record(StopIntended(run_id=run_id, reason=reason, grace_ms=grace_ms))
        await self._journal.sync()
        self._ask(run_id, reason, grace_ms)

    def _ask(self, run_id: str, reason: StopReason, grace_ms: int) -> None:
        if reason is StopReason.PREEMPT:
            self._put_aside.put_aside(run_id, grace_ms)
        else:
            self._supervisors.ask(run_id, reason, grace_ms)

    async def _refuse(
        self,
        command: PrepareRun | StartRun,
        reason: PrepareRefusal,
        detail: str,
        owners: dict[str, str] | None = None,
    ) -> None:
        logger.warning("run %s refused: %s %s", command.run_id, reason, detail)
        refused = RunPrepareRefused(
            node=command.node,
            run_id=command.run_id,
            reason=reason,
            detail=detail,
            owners=owners or {},
        )
        await self._report(refused)

    def _report_started(self, run_id: str, run: Run, up: Started) -> None:
        now_ms = self._clock.monotonic_ms()
        start_ms = now_ms - self._start_arrived_ms.pop(run_id, now_ms)
        self._metrics.started(start_ms)
        started = RunStarted(node=run.prepare.node, run_id=run_id, pids=up.pids, start_ms=start_ms)
        self._journal.record(ReportMade(report=started))
        self._reporter.post(run_id)

    async def _conclude(self, exited: RunExited) -> None:
        """Nothing of the run is left here: free what it held, and tell."""
        run_id = exited.run_id
        self._gpus.release(run_id)
        self._ports.release(run_id)
        self._start_arrived_ms.pop(run_id, None)
        self._spawned_ms.pop(run_id, None)
        self._metrics.exited(exited.ask_to_exit_ms)
        await self._report(exited)

    async def _report(self, report: Report) -> None:
        await self._commit(ReportMade(report=report), report.run_id)

    async def _commit(self, record: AnyRecord, run_id: str) -> None:
        self._journal.record(record)
        await self._journal.sync()
        self._reporter.post(run_id)

    def _lock(self, run_id: str) -> asyncio.Lock:
        return self._locks.setdefault(run_id, asyncio.Lock())

    def _paths(self, prepare: PrepareRun) -> NodePaths:
        checkpoints = prepare.spec.checkpoint.dir
        return NodePaths(
            run_dir=f"{self._runs_dir}/{prepare.run_id}",
            job_socket=self._job_socket,
            bell=self._bell,
            checkpoint_dir=checkpoints or f"{self._checkpoint_root}/{prepare.job_id}",
        )


def _gpu_ids(prepare: PrepareRun) -> list[str]:
    return [gpu_id for task in local_tasks(prepare) for gpu_id in task.gpu_ids]


def _reason_of(command: PreemptRun | StopRun) -> StopReason:
    return command.reason if isinstance(command, StopRun) else StopReason.PREEMPT
