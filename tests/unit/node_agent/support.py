"""An agent on a bus in memory, with a clock that stands still and GPUs that do as told."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from broker.bus import BusMessage
from broker.clock import ManualClock
from broker.codec import decode, decode_input
from broker.memory_bus import MemoryBus, MemoryServer
from broker.schemas.node import GpuInfo, Heartbeat, Telemetry
from broker.topology import INPUT
from node_agent.config import AgentConfig
from node_agent.core.inventory import Host
from node_agent.core.readings import GpuEvent, GpuReading, ProbedGpu, ProbedInventory
from node_agent.gpu_source import ProbeError
from node_agent.metrics import AgentMetrics
from node_agent.service import NodeAgent

NODE = "n1"
ROUNDS = 20_000


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something holds: a socket's other end may need it."""
    for _ in range(ROUNDS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


class InlineExecutor(ThreadPoolExecutor):
    """Does the work of `asyncio.to_thread` at once, so that a test sees the same each time."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - handed to the caller, as a real pool does
            future.set_exception(error)
        return future


class FakeGpus:
    """Four GPUs. ``problem`` breaks all of them; ``stuck`` makes a sample never end."""

    def __init__(self) -> None:
        self.ids = [f"GPU-{index}" for index in range(4)]
        self.problem = ""
        self.lost: set[str] = set()
        self.hot: set[str] = set()
        self.events: list[GpuEvent] = []
        self.stuck: asyncio.Event | None = None
        self.samples = 0
        self.restarts = 0
        self.is_closed = False

    async def inventory(self) -> ProbedInventory:
        if self.problem:
            raise ProbeError(self.problem)
        gpus = tuple(
            ProbedGpu(gpu=GpuInfo(gpu_id=gpu_id, index=index))
            for index, gpu_id in enumerate(self.ids)
        )
        return ProbedInventory(gpus=gpus)

    async def sample(self) -> tuple[GpuReading, ...]:
        if self.problem:
            raise ProbeError(self.problem)
        if self.stuck is not None:
            await self.stuck.wait()
        self.samples += 1
        return tuple(
            GpuReading(
                gpu_id=gpu_id,
                problem="GPU is lost" if gpu_id in self.lost else "",
                utilisation_percent=self.samples,
                is_thermal_slowdown=gpu_id in self.hot,
            )
            for gpu_id in self.ids
        )

    def take_events(self) -> list[GpuEvent]:
        events, self.events = self.events, []
        return events

    async def close(self) -> None:
        self.is_closed = True


class World:
    """Everything around one agent; `start` and `stop` it as often as a test likes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.server = MemoryServer(self.clock)
        self.bus = MemoryBus(self.server)
        self.gpus = FakeGpus()
        self.boot_id = "boot-1"
        self.mask: str | None = None
        self.cleared: tuple[str, ...] = ()
        self.heartbeats: list[Heartbeat] = []
        self.telemetry: list[Telemetry] = []
        self.metrics = AgentMetrics(NODE)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor(1))

        async def on_heartbeat(message: BusMessage) -> None:
            self.heartbeats.append(decode(Heartbeat, message.data))

        async def on_telemetry(message: BusMessage) -> None:
            self.telemetry.append(decode(Telemetry, message.data))

        await self.bus.subscribe(f"tiresias.v1.hb.{NODE}", on_heartbeat)
        await self.bus.subscribe(f"tiresias.v1.tel.{NODE}", on_telemetry)

    def start(self) -> None:
        self._stop = asyncio.Event()
        self.metrics = AgentMetrics(NODE)
        config = AgentConfig(
            host=Host(node=NODE, boot_id=self.boot_id, address="127.0.0.1"),
            run_dir=self.folder / "run",
            state_file=self.folder / "state" / "gpus.json",
            device_mask=self.mask,
            cleared_faults=self.cleared,
        )
        agent = NodeAgent(self.bus, self.clock, self.gpus, config, self.metrics)
        self._task = asyncio.create_task(agent.run(self._stop))

    async def stop(self) -> None:
        assert self._task is not None
        self._stop.set()
        for _ in range(10):
            await self.clock.advance_ms(1_000)
        await self._task

    async def kill(self) -> None:
        """End the agent without a word, as a crash would."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def look(self, times: int = 1) -> None:
        """Let the agent look at its GPUs and tell its telemetry so many times more."""
        for _ in range(times):
            told = len(self.telemetry)
            for _ in range(100):
                await self.clock.advance_ms(100)
                if len(self.telemetry) > told:
                    break
            assert len(self.telemetry) > told

    def inputs(self, kind: type | None = None) -> list:
        records = self.server.streams[INPUT].records_from(1, "")
        messages = [decode_input(r.message.subject, r.message.data) for r in records]
        return [message for message in messages if kind is None or isinstance(message, kind)]
