"""Answers requests for pieces of task logs. Bytes are never interpreted."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from broker.bus import Bus, BusMessage
from broker.clock import Clock
from broker.codec import decode, encode
from broker.errors import CodecError
from broker.ids import InvalidIdError, checked_token, split_run_id
from broker.runtime import Supervisor
from broker.schemas.api import MAX_LOG_CHUNK_BYTES, LogChunk, LogRead
from launcher.core.log_index import Segment, end_of, locate, segment_start
from launcher.metrics import LauncherMetrics
from launcher.supervisors import read_status

logger = logging.getLogger(__name__)

_FIRST_POLL_MS = 5
_LONGEST_POLL_MS = 50
_LONGEST_WAIT_MS = 30_000
_MAX_REQUESTS = 256


class LogServer:
    """Long-polling readers of the logs of all runs whose folders are kept."""

    def __init__(
        self,
        *,
        runs_dir: Path,
        bus: Bus,
        clock: Clock,
        tasks: Supervisor,
        metrics: LauncherMetrics,
        is_live: Callable[[str], bool],
    ) -> None:
        """``is_live`` tells whether a run, by its id, has not ended on this node."""
        self._is_live = is_live
        self._runs_dir = runs_dir
        self._bus = bus
        self._clock = clock
        self._tasks = tasks
        self._metrics = metrics
        self._places = asyncio.Semaphore(_MAX_REQUESTS)

    async def on_request(self, message: BusMessage) -> None:
        """Answer in a task of its own, so that one waiting reader does not hold up the others."""
        await self._places.acquire()
        self._tasks.start("log reader", self._answer(message))

    async def _answer(self, message: BusMessage) -> None:
        try:
            try:
                chunk = await self.read(decode(LogRead, message.data, message.subject))
            except (CodecError, InvalidIdError, OSError) as error:
                chunk = LogChunk(error=str(error))
            self._metrics.log_read(len(chunk.data))
            await self._bus.respond(message, encode(chunk))
        finally:
            self._places.release()

    async def read(self, request: LogRead) -> LogChunk:
        """Return bytes from the offset on, waiting for them as long as the request says."""
        split_run_id(request.run_id)
        checked_token("task", request.task)
        folder = self._runs_dir / request.run_id
        until_ms = self._clock.monotonic_ms() + min(request.wait_ms, _LONGEST_WAIT_MS)
        poll_ms = _FIRST_POLL_MS
        while True:
            if not folder.is_dir():
                return LogChunk(error=f"run {request.run_id} is not known on this node")
            is_live = self._is_live(request.run_id)
            chunk = await asyncio.to_thread(read_chunk, folder, request, is_live=is_live)
            left_ms = until_ms - self._clock.monotonic_ms()
            if chunk.data or chunk.final or left_ms <= 0:
                return chunk
            await self._clock.sleep_ms(min(poll_ms, left_ms))
            poll_ms = min(2 * poll_ms, _LONGEST_POLL_MS)


def read_chunk(folder: Path, request: LogRead, *, is_live: bool) -> LogChunk:
    """Read what is there now.

    Whether the task is over is looked at first, so nothing is missed. A segment that rotation
    removes meanwhile gives an empty chunk, and the next request the following segment.
    """
    is_over = not is_live or read_status(str(folder)).is_task_over(request.task)
    segments = _segments(folder, request.task)
    span = locate(segments, request.offset)
    if span is None:
        end = end_of(segments)
        return LogChunk(offset=end, next_offset=end, final=is_over)
    size = max(1, min(request.max_bytes, MAX_LOG_CHUNK_BYTES))
    try:
        with (folder / span.name).open("rb") as file:
            file.seek(span.skip)
            data = file.read(size)
    except FileNotFoundError:
        return LogChunk(offset=request.offset, next_offset=request.offset)
    next_offset = span.offset + len(data)
    return LogChunk(
        data=data,
        offset=span.offset,
        next_offset=next_offset,
        final=is_over and next_offset >= end_of(segments),
    )


def _segments(folder: Path, task: str) -> list[Segment]:
    """List the segments; one that rotation removes meanwhile is left out."""
    segments: list[Segment] = []
    for path in folder.glob(f"{task}.log*"):
        start = segment_start(task, path.name)
        if start is not None:
            with contextlib.suppress(FileNotFoundError):
                segments.append(Segment(path.name, start, path.stat().st_size))
    return segments
