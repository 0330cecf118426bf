"""The launcher's side of its runs' supervisors: get them, ask them to stop, read what they wrote.

A supervisor is alive while it holds the lock of its run's status file, so neither a reused process
id nor a restarted launcher can be mistaken about it.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from broker.schemas.run import StopReason
from launcher import process_tree, run_folder
from launcher.control import StopRequest, ask
from launcher.core.run_status import Ended, RunStatus, Started, fold, read_facts
from launcher.core.task_plan import RunPlan
from launcher.fork_server import ForkServer

_KILL_LIMIT_S = 10.0
_KILL_PERIOD_S = 0.05


class Supervisors(Protocol):
    """What the launcher needs of supervisors; tests have them without processes."""

    def create_folder(self, run_id: str) -> None:
        """Make the run's folder; raises `OSError`."""
        ...

    async def spawn(self, plan: RunPlan) -> None:
        """Have a supervisor see to the run. Spawning again is harmless: a run has one at most."""
        ...

    def ask(self, run_id: str, reason: StopReason, grace_ms: int) -> None:
        """Ask the supervisor to stop its tasks; lost if it is not up yet, seen in the status."""
        ...

    def status(self, run_id: str) -> RunStatus: ...

    def is_alive(self, run_id: str) -> bool:
        """Whether the supervisor of a run whose status says `is_supervised` still lives."""
        ...

    async def bury(self, run_id: str) -> None:
        """Kill what a dead supervisor left, and write the end it could not write."""
        ...


class LocalSupervisors:
    """Supervisors as processes of this machine."""

    def __init__(self, runs_dir: Path, fork_server: ForkServer) -> None:
        self._runs_dir = runs_dir
        self._fork_server = fork_server

    def create_folder(self, run_id: str) -> None:
        Path(self._folder(run_id)).mkdir(mode=0o700, parents=True, exist_ok=True)

    async def spawn(self, plan: RunPlan) -> None:
        await self._fork_server.fork(plan.run_id, msgspec.json.encode(plan))

    def ask(self, run_id: str, reason: StopReason, grace_ms: int) -> None:
        ask(self._folder(run_id), StopRequest(run_id, reason, grace_ms))

    def status(self, run_id: str) -> RunStatus:
        return read_status(self._folder(run_id))

    def is_alive(self, run_id: str) -> bool:
        status = run_folder.lock_status(self._folder(run_id))
        if status is None:
            return True
        os.close(status)
        return False

    async def bury(self, run_id: str) -> None:
        self.create_folder(run_id)
        await asyncio.to_thread(_bury, self._folder(run_id))

    def _folder(self, run_id: str) -> str:
        return f"{self._runs_dir}/{run_id}"


class Bell:
    """The named pipe in which supervisors tell that something has happened to their run."""

    def __init__(self, path: Path, on_ring: Callable[[str], None]) -> None:
        self._pipe = run_folder.open_pipe(str(path))
        self._on_ring = on_ring
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)

    def _read(self) -> None:
        for run_id in set(run_folder.read_lines(self._pipe)):
            self._on_ring(run_id.decode(errors="replace"))


def read_status(run_dir: str) -> RunStatus:
    """Return what the status file of a run's folder tells so far."""
    return fold(read_facts(run_folder.read_status(run_dir)))


def _bury(run_dir: str) -> None:
    """Blocking. Under the lock, so that a supervisor that comes late finds the run ended.

    The newline before the fact ends a line that the killed supervisor may have left torn.
    """
    status = run_folder.lock_status(run_dir)
    if status is None:
        return
    try:
        before = read_status(run_dir)
        if before.ended is None:
            left = _kill_left(f"{run_folder.MARK}={run_dir}", before.started)
            fact = msgspec.json.encode(Ended(leftover_pids=tuple(left), lost=True))
            os.write(status, b"\n" + fact + b"\n")
            os.fsync(status)
    finally:
        os.close(status)


def _kill_left(mark: str, started: Started | None) -> list[int]:
    """Kill the tasks, and all that carry the mark; return those that could not be killed.

    A task may have given up its environment and with it the mark, but it is known by its number.
    """
    tasks = started.pids.values() if started else ()
    give_up_at = time.monotonic() + _KILL_LIMIT_S
    while left := sorted(
        {
            *process_tree.carrying(mark),
            *(pid for pid in tasks if started and process_tree.was_there(pid, started.boot_ms)),
        }
    ):
        process_tree.signal_all(left, signal.SIGKILL)
        if time.monotonic() > give_up_at:
            break
        time.sleep(_KILL_PERIOD_S)
    return left
