"""The whole agent over the fake driver: lost GPUs, XID errors, hangs, a driver that will not start.

Real probe process, real NVML bindings, real time with short periods; only the bus is in memory.
"""

import asyncio

import pytest

from broker.clock import SystemClock
from broker.codec import decode, decode_input
from broker.memory_bus import MemoryBus, MemoryServer
from broker.schemas.node import GpuFaultReason, GpuHealthChanged, NodeJoined, Telemetry
from broker.topology import INPUT
from node_agent.config import AgentConfig
from node_agent.core.inventory import Host
from node_agent.metrics import AgentMetrics
from node_agent.nvml import NvmlProbe, ProbeTimes
from node_agent.service import NodeAgent

pytestmark = pytest.mark.process

IDS = [f"GPU-{index:08x}-1111-2222-3333-444444444444" for index in range(4)]
MISMATCH = 18


class Node:
    """One node over several starts of its agent."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.clock = SystemClock()
        self.server = MemoryServer(self.clock)
        self.bus = MemoryBus(self.server)
        self.telemetry: list[Telemetry] = []
        self.boot_id = "boot-1"
        self.mask: str | None = None
        self.times = ProbeTimes(stop_step_ms=200, backoff_ms=10, max_backoff_ms=50)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        async def on_telemetry(message) -> None:
            self.telemetry.append(decode(Telemetry, message.data))

        await self.bus.subscribe("tiresias.v1.tel.n1", on_telemetry)

    def start(self) -> None:
        self._stop = asyncio.Event()
        config = AgentConfig(
            host=Host(node="n1", boot_id=self.boot_id, address="127.0.0.1"),
            run_dir=self.folder / "run",
            state_file=self.folder / "state" / "gpus.json",
            device_mask=self.mask,
            telemetry_ms=50,
            hung_after_ms=600,
        )
        probe = NvmlProbe(self.clock, self.times)
        agent = NodeAgent(self.bus, self.clock, probe, config, AgentMetrics("n1"))
        self._task = asyncio.create_task(agent.run(self._stop))

    async def stop(self) -> None:
        if self._task is not None:
            self._stop.set()
            await self._task
            self._task = None

    def inputs(self, kind: type) -> list:
        records = self.server.streams[INPUT].records_from(1, "")
        messages = [decode_input(r.message.subject, r.message.data) for r in records]
        return [message for message in messages if isinstance(message, kind)]

    def health(self) -> list[tuple[str, GpuFaultReason | None]]:
        return [(change.gpu_id, change.reason) for change in self.inputs(GpuHealthChanged)]

    async def sees(self, condition) -> None:
        """Wait until it holds, for a while."""
        async with asyncio.timeout(30):
            while not condition():
                assert self._task is None or not self._task.done()
                await asyncio.sleep(0.01)

    async def joins(self, number: int = 1) -> NodeJoined:
        await self.sees(lambda: len(self.inputs(NodeJoined)) >= number)
        return self.inputs(NodeJoined)[number - 1]

    async def looks(self, count: int) -> None:
        """Wait for so many fresh telemetry messages more."""
        wanted = len(self.telemetry) + count
        await self.sees(lambda: len(self.telemetry) >= wanted)


@pytest.fixture
async def node(tmp_path):
    made = Node(tmp_path)
    await made.listen()
    yield made
    await made.stop()


async def test_gpu_2_lost_leaves_three_usable_and_the_flag_outlives_the_agent(nvml, node) -> None:
    node.start()
    assert (await node.joins()).unhealthy == {}
    nvml.set(gpu2_lost=1)
    await node.sees(node.health)
    await node.looks(5)
    assert node.health() == [(IDS[2], GpuFaultReason.LOST)]
    assert "lost" in node.inputs(GpuHealthChanged)[0].detail
    sampled = [sample.gpu_id for sample in node.telemetry[-1].gpus]
    assert sampled == [IDS[0], IDS[1], IDS[3]]
    await node.stop()

    nvml.set(gpu2_lost=None)
    node.start()
    joined = await node.joins(2)
    assert [gpu.gpu_id for gpu in joined.gpus] == IDS
    assert joined.unhealthy == {IDS[2]: GpuFaultReason.LOST}
    await node.looks(8)
    assert len(node.health()) == 1
    await node.stop()

    node.boot_id = "boot-2"
    node.start()
    await node.sees(lambda: node.health()[1:] == [(IDS[2], None)])


async def test_a_gpu_gone_while_the_agent_was_down_does_not_shift_the_mask(nvml, node) -> None:
    node.mask = "1,2"
    node.start()
    await node.joins()
    await node.stop()
    nvml.set(gpu1_hidden=1)
    node.start()
    joined = await node.joins(2)
    assert [(gpu.gpu_id, gpu.index) for gpu in joined.gpus] == [(IDS[1], 1), (IDS[2], 2)]
    await node.sees(node.health)
    assert node.health() == [(IDS[1], GpuFaultReason.LOST)]


@pytest.mark.parametrize(
    ("mask", "indexes", "has_problem"),
    [
        (None, [0, 1, 2, 3], False),
        ("2,3", [2, 3], False),
        (f"{IDS[1]},{IDS[3]}", [1, 3], False),
        ("GPU-00000001", [1], False),
        ("", [], False),
        ("-1", [], False),
        ("1,9", [1], True),
    ],
)
async def test_capacity_follows_the_mask(nvml, node, mask, indexes, has_problem) -> None:
    node.mask = mask
    node.start()
    joined = await node.joins()
    assert [gpu.index for gpu in joined.gpus] == indexes
    assert bool(joined.problem) == has_problem


async def test_a_driver_that_will_not_start_offers_no_gpu_until_it_does(nvml, node) -> None:
    nvml.fail("nvmlInitWithFlags", MISMATCH)
    node.start()
    joined = await node.joins()
    assert joined.gpus == ()
    assert "driver/library version mismatch" in joined.problem
    await node.looks(10)
    assert len(node.inputs(NodeJoined)) == 1
    assert node.telemetry[-1].stale_since_ms is not None
    nvml.fail("nvmlInitWithFlags", None)
    joined = await node.joins(2)
    assert (len(joined.gpus), joined.problem) == (4, "")


async def test_xid_79_takes_the_gpu_out_and_an_application_fault_does_not(nvml, node) -> None:
    node.start()
    await node.looks(3)
    await node.joins()
    nvml.xid(0, 31)
    nvml.xid(1, 79)
    await node.sees(node.health)
    await node.looks(3)
    assert node.health() == [(IDS[1], GpuFaultReason.LOST)]
    assert "XID 79" in node.inputs(GpuHealthChanged)[0].detail


async def test_a_hang_is_told_as_stale_then_hung_and_heals(nvml, node) -> None:
    node.times = ProbeTimes(
        answer_ms=500, start_ms=3_000, stop_step_ms=100, backoff_ms=10, max_backoff_ms=50
    )
    node.start()
    await node.sees(lambda: any(told.gpus for told in node.telemetry))
    nvml.set(hang=1)
    await node.sees(lambda: len(node.health()) == 4)
    assert {reason for _, reason in node.health()} == {GpuFaultReason.HUNG}
    assert node.telemetry[-1].gpus == ()
    assert node.telemetry[-1].stale_since_ms is not None
    nvml.set(hang=None)
    await node.sees(lambda: len(node.health()) >= 8)
    assert set(node.health()[4:8]) == {(gpu_id, None) for gpu_id in IDS}
    await node.sees(lambda: node.telemetry[-1].gpus and not node.telemetry[-1].stale_since_ms)


async def test_a_machine_without_the_library_joins_with_no_gpu(node, tmp_path, monkeypatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    node.start()
    joined = await node.joins()
    assert joined.gpus == ()
    assert "not found" in joined.problem
