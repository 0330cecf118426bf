"""Time for the shells: wall time in messages, monotonic time for waits; both injectable."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a shell may know of time; cores get ``now_ms`` as an argument instead."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back; only differences mean something."""
        ...

    async def sleep_ms(self, delay_ms: int) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, delay_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1000)


class ManualClock:
    """A clock that stands still until a test moves it; sleepers wake in order of their time."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._start_ms = now_ms
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._now_ms - self._start_ms

    async def sleep_ms(self, delay_ms: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_ms + delay_ms, future))
        await future

    async def advance_ms(self, delta_ms: int) -> None:
        """Move time forward, waking each sleeper at its own time and letting it run."""
        target_ms = self._now_ms + delta_ms
        await settle()
        while due := [entry for entry in self._sleepers if entry[0] <= target_ms]:
            entry = min(due, key=lambda item: item[0])
            self._sleepers.remove(entry)
            self._now_ms = max(self._now_ms, entry[0])
            if not entry[1].done():
                entry[1].set_result(None)
            await settle()
        self._now_ms = target_ms


async def settle(rounds: int = 20) -> None:
    """Let every ready task of the loop run, without real time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)
