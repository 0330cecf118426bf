"""The agent of one node: join, heartbeats, telemetry, GPU health, and the jobs' own words.

Heartbeats have a task of their own, so that no slow driver and no full disk delays them. After
the connection to the bus comes back nothing is sent again except what comes next anyway.
"""

import asyncio
import logging
import random
import uuid
from typing import Any

import psutil

from broker import subjects
from broker.bus import Bus
from broker.clock import Clock
from broker.codec import encode
from broker.errors import BusError
from broker.runtime import Supervisor
from broker.schemas.node import GpuSample, Heartbeat, NodeLeft, Telemetry
from broker.schemas.run import RunCheckpointed
from node_agent.config import AgentConfig
from node_agent.core.job_reports import JobBook, Outgoing
from node_agent.core.readings import GpuReading
from node_agent.gpu_source import GpuSource
from node_agent.gpu_watch import GpuWatch
from node_agent.job_socket import JobSocket
from node_agent.metrics import AgentMetrics
from node_agent.outbox import Outbox

logger = logging.getLogger(__name__)

JITTER = 0.1


class NodeAgent:
    """Runs until told to stop; owns the GPU source and the job socket, not the bus."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        source: GpuSource,
        config: AgentConfig,
        metrics: AgentMetrics,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._source = source
        self._config = config
        self._metrics = metrics
        self._node = config.host.node
        self._outbox = Outbox(bus, clock, self._node)
        self._watch = GpuWatch(source, clock, self._outbox, config)
        self._jobs = JobBook(self._node)
        self._socket = JobSocket(config.job_socket, self._jobs, clock, self._emit)
        self._fresh_at_ms = clock.now_ms()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``, then leave: the node's GPUs are offered no longer."""
        await self._socket.start()
        try:
            async with Supervisor() as tasks:
                tasks.start("outbox", self._outbox.run())
                heart = tasks.start("heartbeats", self._send_heartbeats())
                observer = tasks.start("telemetry", self._observe())
                await stop.wait()
                heart.cancel()
                observer.cancel()
                await asyncio.wait([heart, observer])
                await self._leave()
        finally:
            await self._socket.close()
            await self._source.close()

    async def _send_heartbeats(self) -> None:
        sequence = 0
        while True:
            if self._bus.is_connected:
                sequence += 1
                heartbeat = Heartbeat(
                    node=self._node,
                    boot_id=self._config.host.boot_id,
                    sequence=sequence,
                    at_ms=self._clock.now_ms(),
                )
                await self._bus.publish(subjects.heartbeat(self._node), encode(heartbeat))
                self._metrics.heartbeat_sent()
            jitter = random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads load, no secret
            await self._clock.sleep_ms(int(self._config.heartbeat_ms * jitter))

    async def _observe(self) -> None:
        """Look at the GPUs and publish once a period, also while a look takes long."""
        period_ms = self._config.telemetry_ms
        look: asyncio.Task[tuple[GpuReading, ...] | None] | None = None
        try:
            while True:
                next_ms = self._clock.monotonic_ms() + period_ms
                look = look or asyncio.create_task(self._watch.look(), name="look at GPUs")
                readings = None
                if await self._ends_within(look, period_ms // 2):
                    readings, look = look.result(), None
                await self._publish_telemetry(readings)
                await self._clock.sleep_ms(next_ms - self._clock.monotonic_ms())
        finally:
            if look is not None:
                look.cancel()
                await asyncio.wait([look])

    async def _ends_within(self, task: asyncio.Task[Any], limit_ms: int) -> bool:
        timer = asyncio.create_task(self._clock.sleep_ms(limit_ms), name="limit")
        try:
            await asyncio.wait([task, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.wait([timer])
        return task.done()

    async def _publish_telemetry(self, readings: tuple[GpuReading, ...] | None) -> None:
        """Publish this look, or since when there is none; never an older one."""
        samples = tuple(_sample_of(reading) for reading in readings or ())
        now_ms = self._clock.now_ms()
        if readings is not None:
            self._fresh_at_ms = now_ms
        telemetry = Telemetry(
            node=self._node,
            at_ms=now_ms,
            gpus=samples,
            runs=self._jobs.progress(self._clock.monotonic_ms()),
            cpu_percent=psutil.cpu_percent(),
            memory_used_bytes=psutil.virtual_memory().used,
            stale_since_ms=self._fresh_at_ms if readings is None else None,
        )
        try:
            await self._bus.publish(subjects.telemetry(self._node), encode(telemetry))
        except BusError as error:  # jobs fill it, so it may be larger than the server takes
            logger.warning("telemetry not sent: %s", error)
        self._metrics.sampled(samples)
        self._metrics.counted(self._source.restarts, self._jobs.unknown_lines)
        if self._watch.health is not None:
            self._metrics.judged(self._watch.offered, self._watch.health.faults)

    def _emit(self, outgoing: Outgoing) -> None:
        """Send a job's report; of the periodic saves of a run only the newest must arrive."""
        message = outgoing.message
        is_periodic = isinstance(message, RunCheckpointed) and not message.asked
        key = f"saved/{message.run_id}" if is_periodic else outgoing.message_id
        self._outbox.put(key, message, outgoing.message_id)

    async def _leave(self) -> None:
        """Tell the rest and that the node leaves, if the bus takes it in time."""
        left_id = f"{self._node}/left/{uuid.uuid4().hex[:12]}"
        self._outbox.put("left", NodeLeft(node=self._node), left_id)
        drained = asyncio.create_task(self._outbox.drained(), name="last inputs")
        if not await self._ends_within(drained, self._config.leave_ms):
            logger.warning("left without a word: the bus is away")
            drained.cancel()
            await asyncio.wait([drained])


def _sample_of(reading: GpuReading) -> GpuSample:
    return GpuSample(
        gpu_id=reading.gpu_id,
        utilisation_percent=reading.utilisation_percent,
        memory_used_bytes=reading.memory_used_bytes,
        temperature_celsius=reading.temperature_celsius,
        power_milliwatts=reading.power_milliwatts,
        ecc_uncorrected_errors=reading.ecc_uncorrected_errors,
        pids=reading.pids,
    )
