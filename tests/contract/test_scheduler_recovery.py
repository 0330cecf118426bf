"""The scheduler's shell on a real server: crash, fence, and a server that is killed under it."""

import asyncio
import json
import os
import signal
from contextlib import aclosing, asynccontextmanager

import pytest

from broker import nats_bus, subjects, topology
from broker.clock import SystemClock
from broker.embedded import EmbeddedServer
from broker.errors import BusUnavailableError, FencedError
from broker.topology import DECISIONS
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.service import SchedulerService
from tests.unit.scheduler_svc_shell.toy_core import ToyCore

pytestmark = pytest.mark.nats


class CrashingAt:
    """A bus whose append number ``fail_at`` of a decision gets no answer, and none after it."""

    def __init__(self, bus, fail_at: int, *, stored: bool) -> None:
        self._bus = bus
        self._fail_at = fail_at
        self._stored = stored
        self._count = 0

    def __getattr__(self, name):
        return getattr(self._bus, name)

    async def append(self, subject, data, **options):
        if options.get("epoch") is None:
            return await self._bus.append(subject, data, **options)
        number, self._count = self._count, self._count + 1
        if number < self._fail_at or (number == self._fail_at and self._stored):
            stored = await self._bus.append(subject, data, **options)
            if number < self._fail_at:
                return stored
        raise BusUnavailableError("no answer in time")


class Mesh:
    """One real server, a client, and scheduler services with the toy core."""

    def __init__(self, server, client, state_dir) -> None:
        self.server = server
        self.client = client
        self.state_dir = state_dir

    @asynccontextmanager
    async def bus(self, name):
        bus = await nats_bus.connect(self.server.url, name=name)
        try:
            yield bus
        finally:
            await bus.close()

    def service(self, bus) -> SchedulerService:
        clock = SystemClock()
        config = SchedulerConfig(nats_url=self.server.url, state_dir=self.state_dir)
        return SchedulerService(bus, clock, config, SchedulerMetrics(clock), core_type=ToyCore)

    @asynccontextmanager
    async def leading(self):
        """Run a service for the block, which begins when it leads."""
        stop, leads = asyncio.Event(), asyncio.Event()

        async def on_inventory(_):
            leads.set()

        await self.client.subscribe(subjects.INVENTORY, on_inventory)
        async with self.bus("scheduler") as bus, asyncio.TaskGroup() as group:
            task = group.create_task(self.service(bus).run(stop))
            await asyncio.wait_for(leads.wait(), 30)
            yield task
            stop.set()

    async def submit(self, name: str) -> int:
        data = json.dumps({"name": name, "run": "true"}).encode()
        stored = await self.client.append(subjects.job_request("ada", "submit"), data)
        return stored.seq

    async def decision_ids(self) -> list[str]:
        """What is recorded about submissions so far, in order."""
        last_seq = (await self.client.stream_state(DECISIONS)).last_seq
        read = self.client.read_until(DECISIONS, from_seq=1, last_seq=last_seq)
        async with aclosing(read) as found:
            return [message.message_id async for message in found if is_of_submission(message)]

    async def decided(self, count: int) -> list[str]:
        """Wait until so much is recorded about submissions; return it in order."""
        ids = []
        async with (
            asyncio.timeout(30),
            aclosing(self.client.read(DECISIONS, from_seq=1)) as found,
        ):
            async for message in found:
                ids += [message.message_id] if is_of_submission(message) else []
                if len(ids) == count:
                    break
        return await self.decision_ids()


def is_of_submission(message) -> bool:
    return not message.subject.endswith((".leader", ".demoted"))


@pytest.fixture
async def mesh(tmp_path):
    async with EmbeddedServer(tmp_path / "nats") as server:
        client = await nats_bus.connect(server.url, name="client")
        try:
            await topology.ensure(client)
            yield Mesh(server, client, tmp_path / "state")
        finally:
            await client.close()


def ids_of(seqs: list[int]) -> list[str]:
    return [f"{seq}.{index}" for seq in seqs for index in (0, 1)]


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_crash_between_two_appends_loses_and_doubles_nothing(mesh, is_stored):
    seqs = [await mesh.submit(f"job-{number}") for number in range(20)]
    async with mesh.bus("crashing") as bus:
        with pytest.raises(BusUnavailableError):
            await mesh.service(CrashingAt(bus, 11, stored=is_stored)).run(asyncio.Event())
    assert await mesh.decision_ids() == ids_of(seqs)[: 11 + is_stored]
    async with mesh.leading():
        assert await mesh.decided(40) == ids_of(seqs)
        seqs.append(await mesh.submit("after"))
        assert await mesh.decided(42) == ids_of(seqs)


async def test_after_a_clean_stop_the_snapshot_is_where_it_goes_on(mesh):
    async with mesh.leading():
        seqs = [await mesh.submit(f"job-{number}") for number in range(5)]
        await mesh.decided(10)
    for path in (mesh.state_dir / "snapshots").iterdir():
        path.unlink()
    async with mesh.leading():
        seqs.append(await mesh.submit("after"))
        assert await mesh.decided(12) == ids_of(seqs)


async def test_the_server_refuses_the_older_leader(mesh):
    async with mesh.bus("older") as bus:
        older = asyncio.create_task(mesh.service(bus).run(asyncio.Event()))
        seqs = [await mesh.submit("first")]
        await mesh.decided(2)
        async with mesh.leading():
            seqs.append(await mesh.submit("second"))
            assert await mesh.decided(4) == ids_of(seqs)
            with pytest.raises(FencedError):
                await asyncio.wait_for(older, 30)


async def test_a_server_killed_under_the_leader_costs_no_decision(mesh):
    async with mesh.leading() as task:
        seqs = [await mesh.submit(f"before-{number}") for number in range(10)]
        await mesh.decided(20)
        os.kill(mesh.server.pid, signal.SIGKILL)
        await mesh.server.wait()
        await mesh.server.restart()
        seqs += [await mesh.submit(f"after-{number}") for number in range(10)]
        assert sorted(await mesh.decided(40)) == sorted(ids_of(seqs))
        assert not task.done()
