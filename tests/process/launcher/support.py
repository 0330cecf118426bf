"""A real launcher with real processes, on a bus in memory inside the test process."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from broker import subjects
from broker.bus import Bus
from broker.clock import SystemClock
from broker.codec import decode, decode_input, encode
from broker.memory_bus import MemoryBus, MemoryServer
from broker.schemas.api import LogChunk, LogRead
from broker.schemas.base import Input, tag_of
from broker.schemas.command import (
    Command,
    PreemptRun,
    PrepareRun,
    StartRun,
    StopRun,
    TaskPlacement,
)
from broker.schemas.job import JobSpec
from broker.schemas.run import (
    InventoryReported,
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunStarted,
    StopReason,
)
from broker.topology import DECISIONS, INPUT
from launcher import process_tree
from launcher.config import LauncherConfig
from launcher.run_folder import MARK
from launcher.service import serve
from tests.free_ports import free_ports

NODE = "n1"
WAIT_S = 30.0
T = TypeVar("T", bound=Input)


async def until(condition: Callable[[], Any]) -> Any:
    """Wait for real processes to make something true."""
    give_up_at = time.monotonic() + WAIT_S
    while True:
        if value := condition():
            return value
        assert time.monotonic() < give_up_at, "waited too long"
        await asyncio.sleep(0.01)


def workers(count: int, *, first_gpu: int = 0) -> tuple[TaskPlacement, ...]:
    return tuple(
        TaskPlacement(role="worker", index=i, rank=i, node=NODE, gpu_ids=(f"GPU-{first_gpu + i}",))
        for i in range(count)
    )


def config_in(folder: Path, **changes: Any) -> LauncherConfig:
    ports = free_ports(100)
    settings = {
        "node": NODE,
        "state_dir": folder / "state",
        "run_dir": folder / "run",
        "checkpoint_root": folder / "checkpoints",
        "first_port": ports[0],
        "last_port": ports[-1],
    }
    return LauncherConfig(**(settings | changes))


class Commands:
    """Says what the scheduler would say, and hears what it would hear."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self.bus = bus
        self.folder = folder
        self._job_ids = itertools.count(1)
        self._indexes = itertools.count()

    async def send(self, command: Command) -> None:
        kind = tag_of(type(command)).removeprefix("cmd.")
        subject = subjects.command(command.node, kind)
        await self.bus.append(subject, encode(command), message_id=str(next(self._indexes)))

    async def prepare(
        self, run: Any, tasks: Iterable[TaskPlacement] = workers(1), **spec: Any
    ) -> str:
        job_id = next(self._job_ids)
        ps = sum(task.role == "ps" for task in tasks)
        count = sum(task.role == "worker" for task in tasks)
        settings = {"name": "test", "grace": "10s", "workers": count, "ps": ps, **spec}
        command = PrepareRun(
            node=NODE,
            run_id=f"{job_id}-1",
            job_id=job_id,
            attempt=1,
            user="ada",
            spec=JobSpec(run=run, **settings),
            tasks=tuple(tasks),
        )
        await self.send(command)
        return command.run_id

    async def start(self, run_id: str) -> None:
        prepared = await self.heard(RunPrepared, run_id)
        cluster: dict[str, list[str]] = {}
        for name, port in prepared.ports.items():
            cluster.setdefault(name.rpartition("-")[0], []).append(f"127.0.0.1:{port}")
        hosts = {role: tuple(addresses) for role, addresses in cluster.items()}
        await self.send(StartRun(node=NODE, run_id=run_id, cluster=hosts))

    async def run(self, run: Any, tasks: Iterable[TaskPlacement] = workers(1), **spec: Any) -> str:
        run_id = await self.prepare(run, tasks, **spec)
        await self.start(run_id)
        return run_id

    async def preempt(self, run_id: str, grace_ms: int = 10_000) -> None:
        await self.send(PreemptRun(node=NODE, run_id=run_id, grace_ms=grace_ms))

    async def stop(
        self, run_id: str, reason: StopReason = StopReason.CANCEL, grace_ms: int = 10_000
    ) -> None:
        await self.send(StopRun(node=NODE, run_id=run_id, reason=reason, grace_ms=grace_ms))

    async def inputs(self) -> list[Input]:
        state = await self.bus.stream_state(INPUT)
        if state.last_seq < state.first_seq:
            return []
        return [
            decode_input(message.subject, message.data)
            async for message in self.bus.read_until(
                INPUT, from_seq=state.first_seq, last_seq=state.last_seq
            )
        ]

    async def said(self, kind: type[T]) -> list[T]:
        return [message for message in await self.inputs() if isinstance(message, kind)]

    async def all_heard(self, kind: type[T], run_id: str) -> list[T]:
        return [
            message
            for message in await self.inputs()
            if isinstance(message, kind) and getattr(message, "run_id", "") == run_id
        ]

    async def heard(self, kind: type[T], run_id: str) -> T:
        """Wait for a report about a run, and return it."""
        give_up_at = time.monotonic() + WAIT_S
        while not (found := await self.all_heard(kind, run_id)):
            refused = await self.all_heard(RunPrepareRefused, run_id)
            assert not refused or kind is RunPrepareRefused, refused
            assert time.monotonic() < give_up_at, f"{kind.__name__} of {run_id} never came"
            await asyncio.sleep(0.01)
        return found[0]

    async def exit_of(self, run_id: str) -> RunExited:
        return await self.heard(RunExited, run_id)

    async def started(self, run_id: str) -> RunStarted:
        return await self.heard(RunStarted, run_id)

    def log(self, run_id: str, task: str = "worker-0") -> bytes:
        """Return the first segment of a log as it is on the disk."""
        path = self.folder / "state" / "runs" / run_id / f"{task}.log"
        return path.read_bytes() if path.exists() else b""

    async def printed(self, run_id: str, text: bytes, task: str = "worker-0") -> None:
        await until(lambda: text in self.log(run_id, task))

    async def read_log(self, run_id: str, offset: int = 0, *, task: str = "worker-0") -> LogChunk:
        request = LogRead(run_id=run_id, task=task, offset=offset, wait_ms=2_000)
        reply = await self.bus.request(subjects.control(NODE, "logs"), encode(request))
        return decode(LogChunk, reply)

    async def follow(self, run_id: str) -> bytes:
        """Read a log from its start to its end, as ``logs -f`` does."""
        text = b""
        while True:
            chunk = await self.read_log(run_id, len(text))
            assert not chunk.error, chunk.error
            assert chunk.offset == len(text)
            text += chunk.data
            if chunk.final:
                return text

    def processes(self, run_id: str) -> list[int]:
        """Return the living processes that were started for a run."""
        return process_tree.carrying(f"{MARK}={self.folder / 'state' / 'runs' / run_id}")

    def supervisor_of(self, run_id: str) -> int:
        path = self.folder / "state" / "runs" / run_id / "status.jsonl"
        first = path.read_bytes().split(b"\n")[0]
        return int(msgspec.json.decode(first)["pid"])


class Node(Commands):
    """One launcher in this process; its supervisors and tasks are real."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = SystemClock()
        self.server = MemoryServer(self.clock)
        self.launcher_bus = MemoryBus(self.server)
        self.config = config_in(folder, **settings)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        super().__init__(MemoryBus(self.server), folder)

    async def up(self) -> None:
        before = len(await self.said(InventoryReported))
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(
            serve(self.config, self.launcher_bus, self.clock, self._stop)
        )
        await self._inventories(before + 1)

    async def _inventories(self, count: int) -> None:
        """Wait until the launcher has said so many times what runs here: then it serves."""
        while len(await self.said(InventoryReported)) < count:
            assert self._task is not None
            assert not self._task.done(), self._task
            await asyncio.sleep(0.005)

    async def down(self) -> None:
        """Stop the launcher as SIGTERM would."""
        assert self._task is not None
        self._stop.set()
        await asyncio.wait_for(self._task, WAIT_S)
        self._task = None

    async def unacknowledged(self) -> int:
        stream = self.server.streams[DECISIONS]
        return len(stream.durables[f"launcher_{NODE}"].unacked)

    @property
    def is_up(self) -> bool:
        return self._task is not None
