"""The agent's side of the NVML probe: one child process, a deadline for each answer.

A child that does not answer in time is put down (stdin closed, then SIGTERM, then SIGKILL) and a
new one is started after a bounded backoff; never before the old one is gone, since a process stuck
in the driver may not die. Answers are never reused: no answer is a `ProbeError`.
"""

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

import node_agent
from broker.clock import Clock
from node_agent.core.readings import GpuEvent, GpuReading, ProbedInventory
from node_agent.gpu_source import ProbeError
from node_agent.probe_protocol import (
    ANSWERS,
    MAX_LINE_BYTES,
    AskInventory,
    AskSample,
    Event,
    Failed,
    Inventory,
    Question,
    Sample,
    line_of,
)

logger = logging.getLogger(__name__)
A = TypeVar("A", Inventory, Sample)

COMMAND = (sys.executable, "-P", "-m", "node_agent.nvml_probe")
PACKAGE_ROOT = Path(node_agent.__file__).resolve().parents[1]


class ProbeTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for the probe. Drivers without persistence mode start slowly."""

    start_ms: int = 30_000
    answer_ms: int = 5_000
    stop_step_ms: int = 1_500
    """Between closing stdin, SIGTERM, SIGKILL and giving up waiting."""
    backoff_ms: int = 1_000
    max_backoff_ms: int = 30_000


class NvmlProbe:
    """The GPUs of this machine; see `gpu_source.GpuSource`."""

    def __init__(self, clock: Clock, times: ProbeTimes) -> None:
        self._clock = clock
        self._times = times
        self._child: asyncio.subprocess.Process | None = None
        self._inventory = ProbedInventory()
        self._events: list[GpuEvent] = []
        self._retiring: asyncio.Task[None] | None = None
        self._starts = 0
        self._failures = 0
        self._next_start_ms = 0
        self._problem = ""

    @property
    def restarts(self) -> int:
        return max(0, self._starts - 1)

    async def inventory(self) -> ProbedInventory:
        await self._running_child()
        return self._inventory

    async def sample(self) -> tuple[GpuReading, ...]:
        child = await self._running_child()
        answer = await self._ask(child, AskSample(), Sample, self._times.answer_ms)
        self._failures, self._problem = 0, ""
        return answer.readings

    def take_events(self) -> list[GpuEvent]:
        events, self._events = self._events, []
        return events

    async def close(self) -> None:
        """End the child; one that is stuck in the driver is left behind."""
        if self._child is not None:
            self._retire()
        if self._retiring is not None:
            limit_s = 4 * self._times.stop_step_ms / 1000
            await asyncio.wait([self._retiring], timeout=limit_s)
            self._retiring.cancel()
            await asyncio.wait([self._retiring])

    async def _running_child(self) -> asyncio.subprocess.Process:
        if self._child is not None:
            return self._child
        if self._retiring is not None and not self._retiring.done():
            raise ProbeError(self._problem)
        if self._clock.monotonic_ms() < self._next_start_ms:
            raise ProbeError(self._problem)
        self._child = child = await self._spawned()
        answer = await self._ask(child, AskInventory(), Inventory, self._times.start_ms)
        self._inventory = answer.inventory
        logger.info(
            "NVML started",
            extra={"gpus": len(self._inventory.gpus), "driver": self._inventory.driver_version},
        )
        return child

    async def _spawned(self) -> asyncio.subprocess.Process:
        """Start the child in a session of its own, so that Ctrl-C reaches only the agent."""
        self._starts += 1
        try:
            return await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
                limit=MAX_LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            raise self._failed(f"cannot start the NVML probe: {error}") from error

    async def _ask(
        self, child: asyncio.subprocess.Process, question: Question, wanted: type[A], limit_ms: int
    ) -> A:
        assert child.stdin is not None
        try:
            async with asyncio.timeout(limit_ms / 1000):
                child.stdin.write(line_of(question))
                await child.stdin.drain()
                return await self._answer(child, wanted)
        except TimeoutError as error:
            raise self._failed(f"NVML did not answer within {limit_ms} ms") from error
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise self._failed("the NVML probe ended without an answer") from error

    async def _answer(self, child: asyncio.subprocess.Process, wanted: type[A]) -> A:
        """Read lines until the answer comes, keeping the events between."""
        assert child.stdout is not None
        while True:
            answer = ANSWERS.decode(await child.stdout.readline())
            if isinstance(answer, wanted):
                return answer
            if isinstance(answer, Event):
                self._events.append(answer.event)
            if isinstance(answer, Failed):
                raise self._failed(answer.problem)

    def _failed(self, problem: str) -> ProbeError:
        """Put the child down, plan the next start, and return the error to raise."""
        if problem != self._problem:
            logger.warning("GPUs cannot be read: %s", problem)
        delay_ms = self._times.backoff_ms * 2 ** min(self._failures, 16)
        self._problem = problem
        self._failures += 1
        self._next_start_ms = self._clock.monotonic_ms() + min(delay_ms, self._times.max_backoff_ms)
        self._retire()
        return ProbeError(problem)

    def _retire(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._retiring = asyncio.create_task(self._put_down(child), name="retire NVML probe")

    async def _put_down(self, child: asyncio.subprocess.Process) -> None:
        """First politely: a monitor should not be killed in the middle of a driver call."""
        assert child.stdin is not None
        child.stdin.close()
        for stop in (None, child.terminate, child.kill):
            if stop is not None:
                with contextlib.suppress(ProcessLookupError):
                    stop()
            try:
                async with asyncio.timeout(self._times.stop_step_ms / 1000):
                    await child.wait()
                    return
            except TimeoutError:
                continue
        logger.error("NVML probe is stuck in the driver", extra={"pid": child.pid})
        await child.wait()
