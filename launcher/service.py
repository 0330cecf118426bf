"""The launcher of one node: consumes commands, keeps runs, tells the scheduler.

An acknowledgement follows once the command and what came of it are in the journal; the reports
are told from there until the input log has them.
"""

import asyncio
import logging
import shutil
import uuid
from contextlib import aclosing
from pathlib import Path

from broker import subjects
from broker.bus import Bus, BusMessage, Delivery
from broker.clock import Clock
from broker.codec import encode
from broker.errors import BusError
from broker.ids import InvalidIdError, checked_token, split_run_id
from broker.runtime import Supervisor
from broker.schemas.command import Command, PrepareRun
from broker.schemas.run import InventoryReported, LauncherLeft, StopReason
from broker.topology import DECISIONS
from launcher.config import LauncherConfig
from launcher.core.run_state import EpochSeen
from launcher.fork_server import ForkServer, Loss
from launcher.journal import Journal
from launcher.logs import LogServer
from launcher.metrics import LauncherMetrics
from launcher.ports import PortPool
from launcher.put_aside import SaveAndExit
from launcher.reporter import Reporter
from launcher.run_folder import BELL
from launcher.runs import RunKeeper
from launcher.supervisors import Bell, LocalSupervisors, Supervisors
from launcher.withdrawn import command_of, stop_behind

logger = logging.getLogger(__name__)

_SWEEP_MS = 1_000
_TIDY_EVERY_SWEEPS = 60
_LAST_POLL_MS = 50
_STOP_SLACK_MS = 5_000
_GOODBYE_MS = 2_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def serve(
    config: LauncherConfig,
    bus: Bus,
    clock: Clock,
    stop: asyncio.Event,
    metrics: LauncherMetrics | None = None,
) -> None:
    """Run a launcher with real processes until ``stop`` is set."""
    for folder in (config.runs_dir, config.run_dir, config.checkpoint_root):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    losses: asyncio.Queue[Loss] = asyncio.Queue()
    fork_server = ForkServer(clock, losses.put_nowait)
    await fork_server.start()
    try:
        async with Supervisor() as tasks:
            supervisors = LocalSupervisors(config.runs_dir, fork_server)
            launcher = Launcher(config, bus, clock, supervisors, tasks, metrics=metrics)
            tasks.start("spawner", fork_server.watch())
            tasks.start("losses", launcher.hear_of(losses))
            bell = Bell(config.run_dir / BELL, launcher.on_ring)
            try:
                await launcher.run(stop)
            finally:
                bell.close()
    finally:
        await fork_server.stop()


class Launcher:
    """The loops of the service; what a run goes through is in `RunKeeper`."""

    def __init__(
        self,
        config: LauncherConfig,
        bus: Bus,
        clock: Clock,
        supervisors: Supervisors,
        tasks: Supervisor,
        *,
        metrics: LauncherMetrics | None = None,
    ) -> None:
        self._config = config
        self._bus = bus
        self._clock = clock
        self._tasks = tasks
        self._metrics = metrics or LauncherMetrics()
        self._journal = Journal(config.state_dir / "journal.jsonl")
        self._ports = PortPool(config.first_port, config.last_port)
        self._reporter = Reporter(
            node=config.node, bus=bus, clock=clock, journal=self._journal, tasks=tasks
        )
        self._keeper = RunKeeper(
            config=config,
            clock=clock,
            journal=self._journal,
            ports=self._ports,
            supervisors=supervisors,
            put_aside=SaveAndExit(supervisors),
            reporter=self._reporter,
            metrics=self._metrics,
            is_cut_off=self._is_cut_off,
        )
        self._places = asyncio.Semaphore(config.max_commands)
        self._in_work: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Adopt what runs, serve until ``stop`` is set, then leave or stop the runs."""
        try:
            await self._run(stop)
        finally:
            self._ports.close()
            await self._journal.close()

    async def _run(self, stop: asyncio.Event) -> None:
        boot_id = await asyncio.to_thread(_read_boot_id)
        await self._keeper.adopt(boot_id)
        logs = LogServer(
            runs_dir=self._config.runs_dir,
            bus=self._bus,
            clock=self._clock,
            tasks=self._tasks,
            metrics=self._metrics,
            is_live=self._journal.book.runs.__contains__,
        )
        subscriptions = [
            await self._bus.subscribe(subjects.control(self._config.node, "logs"), logs.on_request),
            await self._bus.subscribe(subjects.INVENTORY, self._on_inventory_wanted),
        ]
        consuming = self._tasks.start("commands", self._consume())
        self._tasks.start("sweep", self._sweep())
        self._tasks.start("lease", self._keep_lease())
        self._tasks.start("inventory", self._report_inventory(boot_id))
        await stop.wait()
        consuming.cancel()
        await self._say_goodbye()
        if self._config.on_exit == "stop":
            await self._stop_runs()
        for subscription in subscriptions:
            await subscription.unsubscribe()

    def on_ring(self, run_id: str) -> None:
        """A supervisor says that something happened to its run."""
        self._tasks.start(f"refresh {run_id}", self._keeper.refresh(run_id))

    async def hear_of(self, losses: asyncio.Queue[Loss]) -> None:
        """Look at once after runs whose supervisor has gone; give up those that got none."""
        while True:
            loss = await losses.get()
            if loss.was_forked:
                self._tasks.start(f"loss {loss.run_id}", self._keeper.look_after(loss.run_id))
            else:
                logger.error("no process for the supervisor of run %s", loss.run_id)
                await self._keeper.give_up(loss.run_id)

    async def _consume(self) -> None:
        """Runs side by side, commands of one run in their order."""
        durable = f"launcher_{self._config.node}"
        subject = subjects.commands_of(self._config.node)
        async with aclosing(
            self._bus.consume(DECISIONS, durable=durable, subject=subject)
        ) as deliveries:
            async for delivery in deliveries:
                await self._places.acquire()
                task = self._tasks.start("command", self._obey(delivery))
                self._in_work.add(task)
                task.add_done_callback(self._on_obeyed)

    def _on_obeyed(self, task: asyncio.Task[None]) -> None:
        self._in_work.discard(task)
        self._places.release()

    async def _obey(self, delivery: Delivery) -> None:
        message = delivery.message
        command = command_of(message)
        if isinstance(command, Command) and self._is_for_us(command, message.seq):
            stop = await stop_behind(self._bus, command, message, self._clock.now_ms())
            if stop is None:
                await self._keeper.obey(command)
            else:
                await self._keeper.call_off(command, stop)
        await delivery.ack()

    def _is_for_us(self, command: Command, seq: int) -> bool:
        book = self._journal.book
        problem = _problem_of(command)
        if command.node != self._config.node:
            problem = f"it is for node {command.node!r}"
        elif book.is_stale(command.epoch, seq):
            problem = f"its leader's epoch {command.epoch} is older than {book.epoch}"
        if problem:
            logger.warning("command %d dropped: %s", seq, problem)
            return False
        if command.epoch > book.epoch:
            self._journal.record(EpochSeen(epoch=command.epoch))
        return True

    async def _sweep(self) -> None:
        sweeps = 0
        while True:
            await self._clock.sleep_ms(_SWEEP_MS)
            await self._keeper.look_after_all()
            self._metrics.observe(self._journal.book, self._ports.in_use)
            sweeps += 1
            if sweeps % _TIDY_EVERY_SWEEPS == 0:
                await self._journal.compact()
                await asyncio.to_thread(self._remove_old_folders, set(self._journal.book.runs))

    def _remove_old_folders(self, live: set[str]) -> None:
        """Blocking. Keep the folders of the newest ended runs, for their logs."""
        ended = [path for path in self._config.runs_dir.iterdir() if path.name not in live]
        ended.sort(key=lambda path: path.stat().st_mtime)
        for folder in ended[: -self._config.kept_run_folders]:
            shutil.rmtree(folder, ignore_errors=True)

    def _is_cut_off(self) -> bool:
        since_ms = self._bus.disconnected_since_ms
        if since_ms is None:
            return False
        return self._clock.monotonic_ms() - since_ms > self._config.lease_ms

    async def _keep_lease(self) -> None:
        """Stop our tasks before others may count us as dead and start the gang elsewhere."""
        while True:
            await self._clock.sleep_ms(min(_SWEEP_MS, self._config.lease_ms // 4))
            if self._is_cut_off():
                await self._keeper.stop_all(StopReason.LEASE, self._config.lease_grace_ms)

    async def _on_inventory_wanted(self, _message: BusMessage) -> None:
        self._tasks.start("inventory", self._report_inventory(self._journal.book.boot_id))

    async def _report_inventory(self, boot_id: str) -> None:
        message = InventoryReported(
            node=self._config.node, boot_id=boot_id, runs=self._journal.book.inventory()
        )
        subject = subjects.node_input(self._config.node, "inventory_reported")
        message_id = f"inventory/{self._config.node}/{uuid.uuid4().hex}"
        try:
            await self._bus.append(subject, encode(message), message_id=message_id)
        except BusError as error:
            logger.warning("inventory not stored; the next leader will ask again: %s", error)

    async def _say_goodbye(self) -> None:
        """Have nothing placed here until a launcher reports again."""
        message = LauncherLeft(node=self._config.node)
        subject = subjects.node_input(self._config.node, "launcher_left")
        message_id = f"left/{self._config.node}/{self._clock.now_ms()}"
        try:
            await self._bus.append(
                subject, encode(message), message_id=message_id, timeout_ms=_GOODBYE_MS
            )
        except BusError as error:
            logger.warning("nobody was told that this launcher stops: %s", error)

    async def _stop_runs(self) -> None:
        """Leave no process: ask, wait for saves as long as jobs may take, tell how they ended."""
        book = self._journal.book
        if self._in_work:
            await asyncio.wait(self._in_work, timeout=_STOP_SLACK_MS / 1000)
        graces = [run.prepare.spec.grace_ms for run in book.runs.values()]
        give_up_at_ms = self._clock.monotonic_ms() + max(graces, default=0) + _STOP_SLACK_MS
        await self._keeper.stop_all(StopReason.SHUTDOWN)
        while book.runs or not self._reporter.is_idle:
            if self._clock.monotonic_ms() >= give_up_at_ms:
                logger.error("left behind at exit: runs %s", ", ".join(book.runs) or "none")
                return
            await self._clock.sleep_ms(_LAST_POLL_MS)


def _problem_of(command: Command) -> str:
    """Say which name of a command cannot be a file name; usually empty."""
    try:
        split_run_id(command.run_id)
        if isinstance(command, PrepareRun):
            for task in command.tasks:
                checked_token("task", task.name)
    except InvalidIdError as error:
        return str(error)
    return ""


def _read_boot_id() -> str:
    return _BOOT_ID.read_text().strip()
