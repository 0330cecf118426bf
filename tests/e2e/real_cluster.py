"""`tiresias up` as a user runs it, with handles to look at it and to hurt it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.free_ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PLAIN_LOOP = ROOT / "examples" / "plain_loop.py"
POLL_S = 0.1


class RealCluster:
    """Two nodes of four simulated GPUs, unless the options say otherwise."""

    def __init__(self, *options: str, nodes: int = 2, gpus: int = 4) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tir-")
        self.folder = Path(self._folder.name)
        self._environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.folder),
            "XDG_STATE_HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
        }
        self._options = (
            "--nodes",
            str(nodes),
            "--gpus",
            str(gpus),
            "--port",
            str(free_ports(1)[0]),
        )
        self._options += ("--state-dir", str(self.folder / "s"), *options)
        self.log = self.folder / "up.log"
        self.start()

    def start(self) -> None:
        """Start it (again) on the same state, and wait until it is ready."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*_tiresias(), "up", *self._options],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.until(lambda: "ready:" in self.log.read_text(), "up to be ready", 60)

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 90) -> int:
        """Stop it as Ctrl-C does; return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)
        self._folder.cleanup()

    def run(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run one `tiresias` command."""
        return subprocess.run(
            [*_tiresias(), *arguments],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start_command(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one `tiresias` command without waiting for it; use it as a context manager."""
        return subprocess.Popen([*_tiresias(), *arguments], env=self._environment)

    def submit(self, *arguments: str) -> int:
        """Submit with these flags and command; return the job's number."""
        done = self.run("submit", "-q", *arguments)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def submit_loop(self, steps: int, *flags: str, step_ms: int = 100) -> int:
        """Submit the plain stepper: it saves when asked, and goes on from its save."""
        command = (sys.executable, str(PLAIN_LOOP))
        return self.submit(*flags, "--", *command, "--steps", str(steps), "--step-ms", str(step_ms))

    def view(self, job_id: int) -> dict[str, Any]:
        """The job as `show -o json` tells it."""
        done = self.run("show", str(job_id), "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait_state(self, job_id: int, *states: str, timeout_s: float = 60) -> dict[str, Any]:
        """Wait until the job is in one of the states; return its view then."""
        seen: dict[str, Any] = {}

        def is_there() -> bool:
            seen.update(self.view(job_id))
            return seen["state"] in states

        self.until(is_there, f"job {job_id} to be {states}", timeout_s)
        return seen

    def owned_gpus(self) -> list[str]:
        """GPUs that a run owns, as `node ls -o json` tells them."""
        nodes = json.loads(self.run("node", "ls", "-o", "json").stdout)
        return [gpu for node in nodes for gpu in node["owners"]]

    def logs(self, job_id: int, *flags: str) -> str:
        done = self.run("logs", str(job_id), *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def service(self, *words: str) -> psutil.Process:
        """The process of a service whose command line has all these words."""
        found = [
            process
            for process in psutil.Process(self.process.pid).children(recursive=True)
            if set(words) <= set(_command_line(process))
        ]
        assert len(found) == 1, (words, found)
        return found[0]

    def kill(self, *words: str) -> None:
        """Kill -9 a service, and wait until another one has taken its place."""
        old = self.service(*words)
        old.kill()

        def is_replaced() -> bool:
            try:
                return self.service(*words).pid != old.pid
            except (AssertionError, psutil.NoSuchProcess):
                return False

        self.until(is_replaced, f"{words} to be started again", 30)

    def job_processes(self, job_id: int) -> list[psutil.Process]:
        """Processes that carry the job's number and this cluster's folder in their environment."""
        mine = {"TIRESIAS_JOB_ID": str(job_id), "XDG_STATE_HOME": str(self.folder)}
        return [p for p in psutil.process_iter() if mine.items() <= _environment(p).items()]

    def until(self, test: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
        """Poll until the test holds; fail with what was waited for."""
        deadline = time.monotonic() + timeout_s
        while not test():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"waited {timeout_s:g} s for {what}; up said: {self.log.read_text()[-2000:]}"
                )
            time.sleep(POLL_S)


def _tiresias() -> list[str]:
    return [sys.executable, "-P", "-m", "cli.main"]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        line = process.cmdline()
    except psutil.Error:
        return []
    return [*line, Path(line[0]).name] if line else []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}
