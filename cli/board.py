"""A live table of jobs: redrawn in place on a terminal, a line for each change elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from broker.errors import BusError
from broker.schemas.node import RunProgress
from broker.schemas.views import JobState, JobView
from cli import output
from cli.client import Client
from cli.jobs import attained_now, step_text
from cli.output import service, span
from cli.story import queue_name

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("ID", "NAME", "GPUS", "STATE", "QUEUE", "ATTAINED", "STEP", "PREEMPTED", "WHY")


class Board:
    """The newest views of some jobs, and their picture."""

    def __init__(self, peer: Client) -> None:
        self.job_ids: list[int] = []
        self.views: dict[int, JobView] = {}
        self.progress: dict[str, RunProgress] = {}
        self._peer = peer
        self._refreshed = asyncio.Event()
        self._told: dict[int, tuple[object, ...]] = {}
        self._start_ms = peer.clock.monotonic_ms()

    @asynccontextmanager
    async def shown(self, period_s: float) -> AsyncIterator[None]:
        """Keep the picture fresh while the block runs."""
        screen = output.console()
        if not screen.is_terminal:
            async with self._kept_fresh(period_s, self._tell_changes):
                yield
            return
        from rich.live import Live  # noqa: PLC0415 - only for terminals

        with Live(console=screen, auto_refresh=False) as live:

            def draw() -> None:
                live.update(self._table(), refresh=True)

            async with self._kept_fresh(period_s, draw):
                yield

    async def wait_for(self, is_right: Callable[[], bool]) -> None:
        """Return when it holds, looked at after each refresh."""
        while not is_right():
            await self._refreshed.wait()
            self._refreshed.clear()

    def have_all_ended(self) -> bool:
        """Tell whether every job on the board is in its last state."""
        views = [self.views.get(job_id) for job_id in self.job_ids]
        return all(view is not None and view.state.is_terminal for view in views)

    def step_of(self, job_id: int) -> int:
        """Return the newest step of a job's present run, 0 if it has told none."""
        view = self.views.get(job_id)
        progress = self.progress.get(view.run_id or "") if view else None
        return progress.step or 0 if progress else 0

    @asynccontextmanager
    async def _kept_fresh(
        self, period_s: float, picture: Callable[[], None]
    ) -> AsyncIterator[None]:
        async def refresh_for_ever() -> None:
            while True:
                await self._refresh()
                picture()
                await asyncio.sleep(period_s)

        task = asyncio.create_task(refresh_for_ever(), name="board")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self._refresh()
            picture()

    async def _refresh(self) -> None:
        """Read the newest; what cannot be read just now stays as it was."""
        with suppress(BusError):
            self.views = {view.job_id: view for view in await self._peer.jobs()}
            self.progress = await self._peer.progress()
        self._refreshed.set()

    def _row(self, job_id: int) -> tuple[object, ...]:
        view = self.views.get(job_id)
        if view is None:
            return (job_id,)
        attained = service(attained_now(view, self._peer.clock.now_ms()))
        return (
            job_id,
            view.name,
            view.gpus,
            view.state,
            "-" if view.state.is_terminal else queue_name(view.queue_index),
            attained,
            step_text(self.progress.get(view.run_id or "")),
            view.preemptions,
            "" if view.state is JobState.SUCCEEDED else view.message or view.reason,
        )

    def _table(self) -> "Table":
        return output.table(_COLUMNS, (self._row(job_id) for job_id in self.job_ids))

    def _tell_changes(self) -> None:
        """Print a line for each job that is in another state, queue or place than before."""
        elapsed = span(self._peer.clock.monotonic_ms() - self._start_ms)
        for job_id in self.job_ids:
            view = self.views.get(job_id)
            if view is None:
                continue
            key = (view.state, view.reason, view.queue_index, view.run_id)
            if self._told.get(job_id) != key:
                self._told[job_id] = key
                _, name, gpus, state, queue, attained, step, *_, why = self._row(job_id)
                line = f"{elapsed:>7}  {job_id:>3} {name:<17}{gpus:>2} GPUs  {state:<10}{queue:<4}"
                output.print_lines([f"{line}{attained:>10}  step {step:<8}{why}".rstrip()])
