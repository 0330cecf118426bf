"""A launcher on a bus in memory, with a clock that stands still and supervisors that do as told."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from broker import subjects
from broker.clock import ManualClock
from broker.codec import decode_input, encode
from broker.memory_bus import MemoryBus, MemoryServer
from broker.runtime import Supervisor
from broker.schemas.base import Input, tag_of
from broker.schemas.command import Command
from broker.schemas.run import StopReason
from broker.topology import DECISIONS, INPUT
from launcher.config import LauncherConfig
from launcher.core.run_status import (
    AnyFact,
    Asked,
    Ended,
    RunStatus,
    Started,
    Supervising,
    TaskEnded,
    fold,
)
from launcher.core.task_plan import RunPlan
from launcher.service import Launcher
from tests.free_ports import free_ports
from tests.unit.launcher.samples import NODE

ROUNDS = 100_000
T = TypeVar("T", bound=Input)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something holds: the journal syncs in a thread."""
    for _ in range(ROUNDS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


class FakeSupervisors:
    """Supervisors without processes."""

    def __init__(self) -> None:
        self.facts: dict[str, list[AnyFact]] = {}
        self.plans: list[RunPlan] = []
        self.asks: list[tuple[str, StopReason, int]] = []
        self.dead: set[str] = set()
        self.buried: list[str] = []
        self.folder_error: OSError | None = None

    def create_folder(self, run_id: str) -> None:
        if self.folder_error:
            raise self.folder_error

    async def spawn(self, plan: RunPlan) -> None:
        self.plans.append(plan)

    def ask(self, run_id: str, reason: StopReason, grace_ms: int) -> None:
        self.asks.append((run_id, reason, grace_ms))

    def status(self, run_id: str) -> RunStatus:
        return fold(self.facts.get(run_id, []))

    def is_alive(self, run_id: str) -> bool:
        return run_id not in self.dead

    async def bury(self, run_id: str) -> None:
        self.buried.append(run_id)
        self.note(run_id, Ended(lost=True))

    def note(self, run_id: str, *facts: AnyFact) -> None:
        self.facts.setdefault(run_id, []).extend(facts)

    def up(self, run_id: str) -> None:
        self.note(run_id, Supervising(pid=10), Started(pids={"worker-0": 11}))

    def asked(self, run_id: str, reason: StopReason) -> None:
        self.note(run_id, Asked(reason=reason))

    def end(self, run_id: str, return_code: int = 0) -> None:
        exited = TaskEnded(task="worker-0", rank=0, return_code=return_code, stopped_by_us=False)
        self.note(run_id, exited, Ended())


class World:
    """One launcher, and the scheduler's side of the bus."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        ports = free_ports(10)
        self.clock = ManualClock()
        self.server = MemoryServer(self.clock)
        self.scheduler = MemoryBus(self.server)
        self.supervisors = FakeSupervisors()
        self.config = LauncherConfig(
            node=NODE,
            state_dir=folder / "state",
            run_dir=folder / "run",
            checkpoint_root=folder / "checkpoints",
            **{"first_port": ports[0], "last_port": ports[-1], **settings},
        )
        self.config.runs_dir.mkdir(parents=True, exist_ok=True)
        self.bus = MemoryBus(self.server)
        self._sent = 0

    async def up(self) -> None:
        """Start a launcher on the state that is there, and wait until it serves."""
        told = len(self.heard())
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(self._serve())
        await until(lambda: self.task.done() or len(self.heard()) > told)

    async def _serve(self) -> None:
        async with Supervisor() as tasks:
            self.launcher = Launcher(self.config, self.bus, self.clock, self.supervisors, tasks)
            await self.launcher.run(self.stop)

    async def down(self) -> None:
        self.stop.set()
        await self.task

    async def kill(self) -> None:
        """End the launcher as abruptly as a test can."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def send(self, *commands: Command) -> None:
        """Give commands, and wait until each was acknowledged and its reports were told."""
        await self.store(*commands)
        await until(self.is_acknowledged)
        await self.told()

    async def store(self, *commands: Command) -> None:
        """Give commands, whether or not a launcher is there to take them."""
        for command in commands:
            self._sent += 1
            kind = tag_of(type(command)).removeprefix("cmd.")
            await self.scheduler.append(
                subjects.command(NODE, kind), encode(command), message_id=str(self._sent)
            )

    def is_acknowledged(self) -> bool:
        stream = self.server.streams[DECISIONS]
        durable = stream.durables[f"launcher_{NODE}"]
        return durable.next_seq > stream.state.last_seq and not durable.unacked

    def records(self) -> Iterator[tuple[str, Input]]:
        for record in self.server.streams[INPUT].records_from(1, ""):
            message = record.message
            yield message.message_id, decode_input(message.subject, message.data)

    def heard(self, kind: type[Input] = Input, run_id: str = "") -> list[Any]:
        return [
            message
            for _, message in self.records()
            if isinstance(message, kind) and (not run_id or message.run_id == run_id)
        ]

    async def ring(self, run_id: str) -> None:
        """A supervisor rings; wait until what it tells was reported."""
        self.launcher.on_ring(run_id)
        await self.told()

    async def told(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        await until(lambda: not self.launcher._journal.book.undelivered)
