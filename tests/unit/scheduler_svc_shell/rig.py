"""A scheduler service on a bus in memory, with a clock that a test moves and faults it scripts."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

from broker import codec, subjects
from broker.bus import Stored
from broker.clock import ManualClock, settle
from broker.errors import BusUnavailableError
from broker.memory_bus import MemoryBus, MemoryServer
from broker.schemas.node import NodeJoined
from broker.schemas.views import JobView
from broker.topology import DECISIONS, JOBS
from scheduler_svc.config import Options, SchedulerConfig
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.service import SchedulerService
from scheduler_svc.views import PAUSE_MS
from tests.unit.scheduler_svc_shell.toy_core import ToyCore


class FaultyBus(MemoryBus):
    """Fails one append of a decision, before or after it is stored, and all that follow."""

    def __init__(self, server: MemoryServer, *, fail_at: int = -1, stored: bool = False) -> None:
        super().__init__(server)
        self.fail_at = fail_at
        self.stored = stored
        self.appended: list[str] = []

    async def append(
        self, subject, data, *, message_id="", epoch=None, timeout_ms=10_000
    ) -> Stored:
        if epoch is None:
            return await super().append(subject, data, message_id=message_id)
        number = len(self.appended)
        self.appended.append(message_id)
        if 0 <= self.fail_at <= number and not (self.stored and number == self.fail_at):
            raise BusUnavailableError("no answer in time")
        result = await super().append(subject, data, message_id=message_id, epoch=epoch)
        if number == self.fail_at:
            raise BusUnavailableError("no answer in time")
        return result


class ServerClock:
    """The server's clock: that of the test, or some milliseconds behind it."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.behind_ms = 0

    def now_ms(self) -> int:
        return self._clock.now_ms() - self.behind_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    async def sleep_ms(self, delay_ms: int) -> None:
        await self._clock.sleep_ms(delay_ms)


class Rig:
    """One in-memory server and the services started on it, one after the other."""

    def __init__(self, state_dir: Path) -> None:
        self.clock = ManualClock()
        self.server_clock = ServerClock(self.clock)
        self.server = MemoryServer(self.server_clock)
        self.client = MemoryBus(self.server)
        self.state_dir = state_dir
        self.metrics = SchedulerMetrics(self.clock)
        self.options = Options()
        self.core_type = ToyCore

    def service(self, bus: MemoryBus | None = None, **config) -> SchedulerService:
        self.metrics = SchedulerMetrics(self.clock)
        return SchedulerService(
            bus or MemoryBus(self.server),
            self.clock,
            SchedulerConfig(nats_url="", state_dir=self.state_dir, options=self.options, **config),
            self.metrics,
            core_type=self.core_type,
        )

    @asynccontextmanager
    async def leading(self, bus: MemoryBus | None = None, **config):
        """Run a service for the block; at its end stop it cleanly."""
        stop = asyncio.Event()
        task = asyncio.create_task(self.service(bus, **config).run(stop))
        await self.settle()
        try:
            yield task
            stop.set()
            await asyncio.wait_for(task, 10)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def killed(self, bus: MemoryBus | None = None, **config) -> None:
        """Run a service until nothing moves, then end it without any farewell."""
        task = asyncio.create_task(self.service(bus, **config).run(asyncio.Event()))
        await self.settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    @staticmethod
    async def settle() -> None:
        """Let everything run that can; snapshots write files in threads."""
        for _ in range(5):
            await settle(40)
            await asyncio.sleep(0.002)

    async def submit(self, name: str = "job") -> int:
        spec = {"name": name, "run": "true"}
        subject = subjects.job_request("ada", "submit")
        return (await self.client.append(subject, json.dumps(spec).encode())).seq

    async def cancel(self, job_id: int) -> None:
        data = json.dumps({"type": "job.cancel_requested", "job_id": job_id}).encode()
        await self.client.append(subjects.job_request("ada", "cancel"), data)

    async def join(self, node: str) -> None:
        message = NodeJoined(node=node, boot_id="b1", host="127.0.0.1")
        await self.client.append(subjects.node_input(node, "joined"), codec.encode(message))

    def stored(self, stream: str) -> list:
        return [record.message for record in self.server.streams[stream].records_from(1, "")]

    def decisions(self) -> list:
        return [m for m in self.stored(DECISIONS) if m.subject != subjects.LEADER]

    def epochs(self) -> list[int]:
        return [m.seq for m in self.stored(DECISIONS) if m.subject == subjects.LEADER]

    async def job_view(self, job_id: int) -> JobView | None:
        """The job's view, once changes that gather are written."""
        await self.clock.advance_ms(PAUSE_MS)
        entry = await self.client.kv_get(JOBS, str(job_id))
        return None if entry is None else codec.decode(JobView, entry.data)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"tiresias_{name}", labels) or 0.0
