"""Child processes of `tiresias up` and `demo`: kept running, stopped in time, none left behind.

Children are in sessions of their own, so that Ctrl-C reaches only us; the kernel ends them if we
are killed. This process adopts orphaned descendants, so that it can find and end them all.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from broker.runtime import die_with_parent
from cli.exit_codes import CommandError, ExitCode

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 8.0
HEALTHY_AFTER_S = 30.0
MAX_QUICK_FAILURES = 8
MAX_LOG_BYTES = 10 * 1024 * 1024
REAP_PERIOD_S = 1.0
KILL_WAIT_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


class ManagedProcess:
    """One service as a child process, started again when it dies until it is stopped."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.name = name
        self._command = (sys.executable, "-P", "-m", module, *arguments)
        self._environment = environment
        self._log_path = log_path
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process id, None while it does not run."""
        alive = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and alive else None

    async def run(self) -> None:
        """Keep the service running; raises `CommandError` if it dies again and again."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._is_stopping.is_set():
            started_s = loop.time()
            process = await self._start()
            try:
                code = await process.wait()
            finally:
                self.kill()
            if self._is_stopping.is_set():
                return
            failures = 0 if loop.time() - started_s > HEALTHY_AFTER_S else failures + 1
            if code == ExitCode.USAGE:
                raise CommandError(f"{self.name} refuses its options: {self._last_log_line()}")
            if failures > MAX_QUICK_FAILURES:
                raise CommandError(f"{self.name} keeps failing: see {self._log_path}")
            delay_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** max(0, failures - 1))
            self._tell(
                f"{self.name} ended with {end_text(code)}; starting it again in {delay_s:g} s "
                f"(log: {self._log_path})"
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._is_stopping.wait()

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Ask the service to end; kill it when the time is out or ``hurry`` is set."""
        self._is_stopping.set()
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        waits = [asyncio.create_task(self._process.wait()), asyncio.create_task(hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Kill the service if it still runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _last_log_line(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    async def _start(self) -> asyncio.subprocess.Process:
        with _log_file(self._log_path) as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self._environment),
                start_new_session=True,
                preexec_fn=_tied_to(os.getpid()),
            )
        return self._process


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, instead of init."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


async def reap_orphans(own_pids: Callable[[], set[int]]) -> None:
    """Collect adopted descendants that have ended, for ever; ``own_pids`` are left to asyncio."""
    while True:
        await asyncio.sleep(REAP_PERIOD_S)
        _reap(await asyncio.to_thread(_children, recursive=False), own_pids())


async def kill_descendants(spare: set[int]) -> int:
    """Kill all that is left below this process; return how many there were."""
    deadline_s = asyncio.get_running_loop().time() + KILL_WAIT_S
    killed: set[int] = set()
    while asyncio.get_running_loop().time() < deadline_s:
        below = [child for child in _children(recursive=True) if child.pid not in spare]
        alive = [child for child in below if not _is_zombie(child)]
        if not alive:
            _reap(below, spare)
            break
        for child in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
                killed.add(child.pid)
        await asyncio.sleep(0.05)
    return len(killed)


def _children(*, recursive: bool) -> list[psutil.Process]:
    return psutil.Process().children(recursive=recursive)


def _reap(children: Iterable[psutil.Process], own_pids: set[int]) -> None:
    for child in children:
        if child.pid not in own_pids and _is_zombie(child):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _tied_to(parent_pid: int) -> Callable[[], None]:
    """Return what a child does before exec: end with its parent, also if that ended just now."""

    def before_exec() -> None:
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent_pid:
            os.kill(os.getpid(), signal.SIGKILL)

    return before_exec


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[int]:
    """Open a log for appending; a large one is put aside first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield log
    finally:
        os.close(log)


def end_text(code: int) -> str:
    """Tell how a process ended, from the code that Python gives."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
