"""The agent as a process on a real nats-server: starts, serves, leaves nothing behind."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import psutil
import pytest

from broker import topology
from broker.codec import decode, decode_input
from broker.embedded import EmbeddedServer
from broker.nats_bus import connect
from broker.schemas.node import Heartbeat, NodeJoined, NodeLeft
from broker.topology import INPUT
from tests.free_ports import free_ports

pytestmark = [pytest.mark.process, pytest.mark.nats]

ROOT = Path(__file__).parents[3]


class Cluster:
    """A server, our own connection to it, and agents that are gone at the end."""

    def __init__(self, folder: Path, url: str, bus) -> None:
        self.folder = folder
        self.url = url
        self.bus = bus
        self.agents: list[asyncio.subprocess.Process] = []

    async def agent(self, *flags: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "node_agent", "--nats", self.url, "--node", "n1"),
            *("--run-dir", self.folder / "run", "--state-dir", self.folder / "state"),
            *flags,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=asyncio.subprocess.PIPE,
        )
        self.agents.append(process)
        return process

    async def inputs(self, count: int) -> list:
        """The first inputs of the log, when there are so many."""
        async with asyncio.timeout(30), aclosing(self.bus.read(INPUT, from_seq=1)) as messages:
            found = []
            async for message in messages:
                found.append(decode_input(message.subject, message.data))
                if len(found) == count:
                    return found
        raise AssertionError("the log ended")

    async def ends(self, process: asyncio.subprocess.Process) -> tuple[int, str]:
        async with asyncio.timeout(30):
            _, errors = await process.communicate()
        return process.returncode, errors.decode()


async def ended(process: psutil.Process) -> None:
    """Wait for the end of a process that is not our child; an unreaped one has ended too."""
    for _ in range(1_000):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"process {process.pid} lives on")


@pytest.fixture
async def cluster(tmp_path):
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(tmp_path / "nats"))
        bus = await connect(server.url, name="test")
        stack.push_async_callback(bus.close)
        await topology.ensure(bus)
        made = Cluster(tmp_path, server.url, bus)
        yield made
        for process in made.agents:
            if process.returncode is None:
                process.kill()
                await process.communicate()


async def test_it_joins_beats_and_leaves_with_code_zero(cluster) -> None:
    beats: asyncio.Queue[Heartbeat] = asyncio.Queue()

    async def on_heartbeat(message) -> None:
        beats.put_nowait(decode(Heartbeat, message.data))

    await cluster.bus.subscribe("tiresias.v1.hb.n1", on_heartbeat)
    process = await cluster.agent("--gpus", "2", "--host", "10.0.0.7")
    (joined,) = await cluster.inputs(1)
    assert isinstance(joined, NodeJoined)
    assert [gpu.gpu_id for gpu in joined.gpus] == ["SIM-n1-0", "SIM-n1-1"]
    assert all(gpu.simulated for gpu in joined.gpus)
    assert joined.host == "10.0.0.7"
    assert joined.boot_id
    assert joined.cpus > 0
    async with asyncio.timeout(10):
        assert (await beats.get()).boot_id == joined.boot_id
    process.send_signal(signal.SIGTERM)
    assert (await cluster.ends(process))[0] == 0
    assert isinstance((await cluster.inputs(2))[1], NodeLeft)
    assert not (cluster.folder / "run" / "job.sock").exists()


async def test_metrics_are_served_on_the_loopback(cluster) -> None:
    (port,) = free_ports(1)
    await cluster.agent("--gpus", "1", "--metrics-port", str(port))
    await cluster.inputs(1)
    for _ in range(500):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        if 'tiresias_gpu_healthy{gpu="SIM-n1-0",node="n1"} 1.0' in page:
            break
        await asyncio.sleep(0.01)
    assert 'tiresias_gpu_healthy{gpu="SIM-n1-0",node="n1"} 1.0' in page
    assert 'tiresias_heartbeats_sent_total{node="n1"}' in page


async def test_a_second_agent_on_the_same_folder_ends_and_says_why(cluster) -> None:
    await cluster.agent("--gpus", "1")
    await cluster.inputs(1)
    second = await cluster.agent("--gpus", "1")
    code, errors = await cluster.ends(second)
    assert code == 1
    assert "another agent serves" in errors
    assert "Traceback" not in errors


async def test_a_killed_agent_takes_its_probe_along_and_the_next_one_starts(nvml, cluster) -> None:
    process = await cluster.agent()
    (joined,) = await cluster.inputs(1)
    assert len(joined.gpus) == 4
    (probe,) = psutil.Process(process.pid).children()
    nvml.set(hang=1)
    process.kill()
    await process.communicate()
    await ended(probe)
    nvml.set(hang=None)
    await cluster.agent()
    assert len((await cluster.inputs(2))[1].gpus) == 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gpus", "-1"), "not between 0 and 1024"),
        (("--gpus", "many"), "invalid"),
        (("--node", "Über"), "invalid node"),
    ],
)
async def test_a_wrong_command_line_ends_with_2_and_says_why(cluster, flags, words) -> None:
    code, errors = await cluster.ends(await cluster.agent(*flags))
    assert code == 2
    assert words in errors
