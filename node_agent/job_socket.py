"""The unix socket where training jobs tell their progress: bounded, strict, one way.

Whoever may enter the runtime folder (mode 0700) may speak; who is on the other side is not checked
yet. A connection that breaks the protocol is closed with a log line; nothing else is disturbed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from broker.clock import Clock
from broker.errors import TiresiasError
from node_agent.core.job_reports import (
    MAX_LINE_BYTES,
    Hello,
    JobBook,
    MalformedLineError,
    Outgoing,
)

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
MAX_PATH_BYTES = 107


class JobSocketError(TiresiasError):
    """The job socket cannot be opened."""


class JobSocket:
    """Serves ``path`` from `start` to `close`; hands what the scheduler should know to ``emit``."""

    def __init__(
        self, path: Path, book: JobBook, clock: Clock, emit: Callable[[Outgoing], None]
    ) -> None:
        self._path = path
        self._book = book
        self._clock = clock
        self._emit = emit
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the socket; raises `JobSocketError` if it cannot, or another agent serves it."""
        if len(bytes(self._path)) > MAX_PATH_BYTES:
            raise JobSocketError(f"path {self._path} is longer than {MAX_PATH_BYTES} bytes")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.parent.chmod(0o700)
            await self._remove_stale()
            self._server = await asyncio.start_unix_server(
                self._serve, path=self._path, limit=MAX_LINE_BYTES
            )
            self._path.chmod(0o600)
        except OSError as error:
            raise JobSocketError(f"cannot open {self._path}: {error}") from error

    async def close(self) -> None:
        """Close the socket and every connection."""
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        self._path.unlink(missing_ok=True)

    async def _remove_stale(self) -> None:
        """Remove the socket of an agent that was killed, but not that of one that lives."""
        if not self._path.exists():
            return
        if not self._path.is_socket():
            raise JobSocketError(f"{self._path} is not a socket: remove it")
        try:
            _, writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            self._path.unlink(missing_ok=True)
            return
        writer.close()
        raise JobSocketError(f"another agent serves {self._path}: stop it or use another --run-dir")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= MAX_CONNECTIONS:
                await self._hear_out(reader)
            else:
                logger.warning("job connection refused: %d are open", MAX_CONNECTIONS)
        except (MalformedLineError, ValueError) as error:
            logger.warning("job connection closed: %s", error)
        except OSError as error:
            logger.info("job connection broke: %s", error)
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _hear_out(self, reader: asyncio.StreamReader) -> None:
        first = await reader.readline()
        if not first:
            return
        hello = self._book.open(first)
        try:
            await self._hear_lines(hello, reader)
        finally:
            self._book.close(hello, self._clock.monotonic_ms())

    async def _hear_lines(self, hello: Hello, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            if not line.endswith(b"\n"):
                return
            outgoing = self._book.hear(
                hello,
                line,
                now_ms=self._clock.now_ms(),
                monotonic_ms=self._clock.monotonic_ms(),
            )
            if outgoing is not None:
                self._emit(outgoing)
