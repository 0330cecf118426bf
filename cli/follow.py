"""Reading logs: one task byte for byte, several with a prefix a line, across attempts.

Offsets make it lossless: what a launcher has written is read until it says that nothing follows,
also when the job was put aside and continues elsewhere.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

from broker.errors import BusError
from broker.ids import split_run_id
from broker.schemas.api import LogChunk, LogRead
from broker.schemas.command import TaskPlacement
from broker.schemas.fact import RunPlaced
from broker.schemas.views import JobView
from cli import output
from cli.client import Client
from cli.exit_codes import CommandError, ExitCode
from cli.waiting import outcome_line

LONG_POLL_MS = 2_000
RETRY_S = 0.2
Wanted = Callable[[TaskPlacement], bool]


class LogPrinter:
    """Writes log bytes to standard output: as they are, or line by line behind the task's name."""

    def __init__(self) -> None:
        self._width = 0
        self._partial: dict[str, bytes] = {}

    def open_run(self, tasks: Sequence[TaskPlacement]) -> None:
        """Prepare for the tasks of one run; a prefix is needed only for several."""
        self._width = max(len(task.name) for task in tasks) if len(tasks) > 1 else 0

    def write(self, task: str, data: bytes) -> None:
        """Print the next bytes of a task; with a prefix, only up to the last whole line."""
        if not self._width:
            self._out(data)
            return
        *lines, rest = (self._partial.pop(task, b"") + data).split(b"\n")
        self._partial[task] = rest
        self._out(b"".join(self._prefix(task) + line + b"\n" for line in lines))

    def close(self, task: str) -> None:
        """Print what a task wrote after its last newline."""
        if rest := self._partial.pop(task, b""):
            self._out(self._prefix(task) + rest + b"\n")

    def _prefix(self, task: str) -> bytes:
        return f"{task:<{self._width}} | ".encode()

    @staticmethod
    def _out(data: bytes) -> None:
        if data:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


@contextmanager
def leaving_jobs_running(jobs: Sequence[str | int]) -> Iterator[None]:
    """Turn Ctrl-C into exit code 130 and a line saying that the jobs go on."""
    try:
        yield
    except KeyboardInterrupt:
        numbers = " ".join(str(job) for job in jobs)
        output.print_note(
            f"\nleft the view; job {numbers} goes on ('tiresias cancel {numbers}' stops it)"
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


async def follow_jobs(
    peer: Client, job_ids: Sequence[int], is_wanted: Wanted = lambda _: True
) -> list[JobView]:
    """Print the output of jobs, one after the other, each until it has ended."""
    views = []
    for job_id in job_ids:
        view = await _follow_job(peer, job_id, is_wanted)
        output.print_note(outcome_line(view))
        views.append(view)
    return views


async def print_logs(
    peer: Client, job_id: int, is_wanted: Wanted, attempt: int | None = None
) -> None:
    """Print what there is of the job's output now: one attempt, or all in order."""
    runs = [run for run in await _runs(peer, job_id) if attempt in (None, _attempt(run))]
    if not runs:
        what = "has not started yet" if attempt is None else f"has no attempt {attempt}"
        raise CommandError(f"job {job_id} {what}", ExitCode.NOT_FOUND)
    printer = LogPrinter()
    reader = _LogReader(peer, job_id, printer)
    for run in runs:
        tasks = _chosen(run, is_wanted)
        printer.open_run(tasks)
        for task in tasks:
            await reader.print_present(run.run_id, task)
    if reader.has_failed:
        raise CommandError("a part of the output cannot be read", ExitCode.UNREACHABLE)


async def _follow_job(peer: Client, job_id: int, is_wanted: Wanted) -> JobView:
    printer = LogPrinter()
    reader = _LogReader(peer, job_id, printer)
    shown = 0
    while True:
        view = await peer.job(str(job_id))
        fresh = [run for run in await _runs(peer, job_id) if _attempt(run) > shown]
        for run in fresh:
            tasks = _chosen(run, is_wanted)
            shown = _attempt(run)
            if shown > 1:
                nodes = ", ".join(dict.fromkeys(task.node for task in run.tasks))
                output.print_note(f"--- attempt {shown} on {nodes}")
            printer.open_run(tasks)
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(reader.print_until_end(run.run_id, task))
        if fresh:
            continue
        if view.state.is_terminal:
            return view
        output.print_note(f"--- job {job_id} is {view.state} {view.reason}".rstrip())
        await peer.wait_until(job_id, lambda now: now.state.is_terminal or _newest(now) > shown)  # noqa: B023


async def _runs(peer: Client, job_id: int) -> list[RunPlaced]:
    """Return the job's runs as they were placed, oldest first."""
    return [fact for fact in await peer.story(job_id) if isinstance(fact, RunPlaced)]


def _attempt(run: RunPlaced) -> int:
    return split_run_id(run.run_id)[1]


def _newest(view: JobView) -> int:
    return split_run_id(view.run_id)[1] if view.run_id else 0


def _chosen(run: RunPlaced, is_wanted: Wanted) -> list[TaskPlacement]:
    chosen = [task for task in run.tasks if is_wanted(task)]
    if not chosen:
        known = ", ".join(f"{task.name} (rank {task.rank})" for task in run.tasks)
        raise CommandError(f"no such task; tasks: {known}", ExitCode.NOT_FOUND)
    return chosen


class _LogReader:
    """Reads tasks' logs from the launchers of their nodes."""

    def __init__(self, peer: Client, job_id: int, printer: LogPrinter) -> None:
        self._peer = peer
        self._job_id = job_id
        self._printer = printer
        self.has_failed = False

    async def print_present(self, run_id: str, task: TaskPlacement) -> None:
        """Print a log up to its present end."""
        offset = 0
        while True:
            chunk = await self._read(run_id, task, offset, wait_ms=0)
            if chunk.error:
                self._fail(task, chunk.error)
            offset = self._print(task, chunk, offset)
            if chunk.error or chunk.final or not chunk.data:
                break
        self._printer.close(task.name)

    async def print_until_end(self, run_id: str, task: TaskPlacement) -> None:
        """Print a log until the task is over, however long that takes."""
        offset = 0
        was_over = False
        while True:
            chunk = await self._read(run_id, task, offset, wait_ms=LONG_POLL_MS)
            offset = self._print(task, chunk, offset)
            if chunk.final:
                break
            if not chunk.data:
                if was_over:
                    self._fail(task, chunk.error or "its end is not told")
                    break
                was_over = await self._is_over(run_id)
                await asyncio.sleep(RETRY_S if chunk.error else 0)
        self._printer.close(task.name)

    async def _read(
        self, run_id: str, task: TaskPlacement, offset: int, *, wait_ms: int
    ) -> LogChunk:
        read = LogRead(run_id=run_id, task=task.name, offset=offset, wait_ms=wait_ms)
        try:
            return await self._peer.read_log(task.node, read)
        except BusError as error:
            return LogChunk(offset=offset, next_offset=offset, error=str(error))

    def _print(self, task: TaskPlacement, chunk: LogChunk, offset: int) -> int:
        if chunk.error:
            return offset
        if chunk.offset > offset:
            dropped = chunk.offset - offset
            output.print_note(f"--- {task.name}: {dropped} older bytes are no longer kept")
        self._printer.write(task.name, chunk.data)
        return chunk.next_offset

    def _fail(self, task: TaskPlacement, why: str) -> None:
        self.has_failed = True
        output.print_note(f"--- {task.name} on {task.node}: {why}")

    async def _is_over(self, run_id: str) -> bool:
        view = await self._peer.job(str(self._job_id))
        ended = {run.run_id for run in view.runs if run.ended_at_ms is not None}
        return view.state.is_terminal or run_id in ended
