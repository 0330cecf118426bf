"""A real `tiresias up` for the length of one benchmark, in a folder of its own."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY_TIMEOUT_S = 60


@contextmanager
def running_cluster(*options: str, parent: str | None = None) -> Iterator[tuple[str, Path]]:
    """Start a cluster and stop it at the end; yields its NATS address and its state folder.

    All state is in a new folder below ``parent``, by default where temporary files go.
    """
    with tempfile.TemporaryDirectory(prefix="tiresias-bench-", dir=parent) as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder}
        state_dir = Path(folder) / "state"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cli.main", "up", "--state-dir", str(state_dir), *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            yield _wait_ready(Path(folder), process), state_dir
        finally:
            process.terminate()
            process.wait(90)


def _wait_ready(folder: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    address = folder / "tiresias" / "address.json"
    while time.monotonic() < deadline:
        if address.exists():
            return str(json.loads(address.read_text())["url"])
        if process.poll() is not None:
            output = process.stdout.read().decode() if process.stdout else ""
            sys.exit(f"'tiresias up' ended with {process.returncode}: {output}")
        time.sleep(0.05)
    sys.exit(f"'tiresias up' was not ready in {READY_TIMEOUT_S} s")


def percentile(values: list[float], percent: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


async def wait_for_files(folder: Path, count: int, timeout_s: float) -> None:
    """Wait until so many files are there; ends the program when the time is out."""
    deadline = time.monotonic() + timeout_s
    while (found := len(list(folder.glob("[0-9]*")))) < count:
        if time.monotonic() > deadline:
            sys.exit(f"only {found} of {count} jobs had started after {timeout_s:g} s")
        await asyncio.sleep(0.02)
