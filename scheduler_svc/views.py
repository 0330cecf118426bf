"""Writes the views people read, apart from deciding: the newest of each job and node wins."""

import asyncio
import logging
from collections.abc import Iterable

from broker import codec
from broker.bus import Bus
from broker.clock import Clock
from broker.errors import BusError, BusUnavailableError
from scheduler_svc.fold import View, view_key

WINDOW = 64
RETRY_MS = 500
PAUSE_MS = 100
"""Between two batches: a job that changes several times meanwhile is written once."""
RECENT_MS = 10_000
"""A server that crashed may have forgotten what was written to it so shortly before."""
HEAL_EVERY_MS = 1_000

_log = logging.getLogger(__name__)


class ViewWriter:
    """A bounded queue of views: never more than one waits for each job and node."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._waiting: dict[tuple[str, str], View] = {}
        self._recent: dict[tuple[str, str], tuple[int, View]] = {}
        """Written lately, oldest first, with the time."""
        self._generation = bus.generation
        self._have_work = asyncio.Event()
        self._is_hurried = asyncio.Event()
        self._all_written = asyncio.Event()
        self._all_written.set()

    def put(self, views: Iterable[View]) -> None:
        """Queue views to be written soon; a newer one replaces an older one that waits."""
        for view in views:
            self._waiting[view_key(view)] = view
        if self._waiting:
            self._have_work.set()
            self._all_written.clear()

    async def flush(self) -> None:
        """Return when all views put so far, and those put meanwhile, are written."""
        self._is_hurried.set()
        await self._all_written.wait()
        self._is_hurried.clear()

    async def run(self) -> None:
        """Write until cancelled. An unavailable server is waited for, a refused view dropped."""
        while True:
            await self._have_work.wait()
            await self._write_some()
            if not self._waiting:
                self._have_work.clear()
                self._all_written.set()
            await self._pause()

    async def heal(self) -> None:
        """Write recent views again after each reconnect, until cancelled."""
        while True:
            await self._clock.sleep_ms(HEAL_EVERY_MS)
            if self._bus.generation != self._generation:
                self._generation = self._bus.generation
                newer = set(self._waiting)
                self.put(view for key, (_, view) in self._recent.items() if key not in newer)
            self._forget_old()

    def _forget_old(self) -> None:
        oldest_ms = self._clock.monotonic_ms() - RECENT_MS
        for key in [key for key, (at_ms, _) in self._recent.items() if at_ms < oldest_ms]:
            del self._recent[key]

    async def _pause(self) -> None:
        """Let changes gather, unless somebody waits for all to be written."""
        pause = asyncio.ensure_future(self._clock.sleep_ms(PAUSE_MS))
        hurry = asyncio.ensure_future(self._is_hurried.wait())
        try:
            await asyncio.wait((pause, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            hurry.cancel()

    async def _write_some(self) -> None:
        keys = list(self._waiting)[:WINDOW]
        batch = {key: self._waiting.pop(key) for key in keys}
        answered = await asyncio.gather(*(self._write(key, view) for key, view in batch.items()))
        if not all(answered):
            _log.warning("cannot write views, trying again", extra={"waiting": len(self._waiting)})
            await self._clock.sleep_ms(RETRY_MS)

    async def _write(self, key: tuple[str, str], view: View) -> bool:
        """Write one view; queue it again if there is no answer, unless a newer one waits."""
        try:
            await self._bus.kv_put(*key, codec.encode(view))
        except BusUnavailableError:
            self._waiting.setdefault(key, view)
            return False
        except BusError as error:
            _log.error("view dropped", extra={"key": "/".join(key), "problem": str(error)})
            return True
        self._recent.pop(key, None)
        self._recent[key] = (self._clock.monotonic_ms(), view)
        return True
