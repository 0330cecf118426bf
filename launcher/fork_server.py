"""The launcher's side of the spawner: starts it, sends it plans, starts it again if it dies."""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker.clock import Clock
from launcher.spawner import GONE

logger = logging.getLogger(__name__)

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from launcher.spawner import main; main()"
_ROOT = str(Path(__file__).resolve().parent.parent)
_RESTART_PAUSE_MS = 1_000
_STOP_LIMIT_S = 5.0


class Loss(NamedTuple):
    """A run whose supervisor could not be forked, or is gone, perhaps before the run's end."""

    run_id: str
    was_forked: bool


class ForkServer:
    """One small interpreter, isolated from the environment's and the user's modules."""

    def __init__(self, clock: Clock, on_loss: Callable[[Loss], None]) -> None:
        self._clock = clock
        self._on_loss = on_loss
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        ours, spawners = socket.socketpair()
        with spawners:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT, stdin=spawners.fileno()
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    async def fork(self, run_id: str, plan: bytes) -> None:
        """Send a run's plan. If the spawner dies over it, the run's status stays empty."""
        if self._writer is None:
            return
        self._writer.write(b"%b %b\n" % (run_id.encode(), plan))
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def watch(self) -> None:
        """Hear of losses and keep a spawner running, for ever."""
        while True:
            assert self._reader is not None
            while line := await self._reader.readline():
                what, run_id = line.split()
                self._on_loss(Loss(run_id.decode(), was_forked=what == GONE))
            logger.warning("the spawner is gone; starting it again")
            await self.stop()
            await self._clock.sleep_ms(_RESTART_PAUSE_MS)
            await self.start()

    async def stop(self) -> None:
        """Close the socket, upon which the spawner ends; supervisors stay."""
        if self._writer is None or self._process is None:
            return
        self._writer.close()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_LIMIT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._writer = self._process = None
