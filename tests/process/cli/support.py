"""A real `tiresias up` in a temporary folder, and the commands that talk to it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-P", "-m", "cli")
PATIENCE_S = 60


class RealUp:
    """A cluster as a user starts it."""

    def __init__(self, folder: Path):
        self.state_dir = folder / "state"
        runtime = folder / "runtime"
        runtime.mkdir()
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TIRESIAS_")},
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": str(runtime),
            "TMPDIR": str(folder),
        }
        self.address_file = runtime / "tiresias" / "address.json"
        self.process: subprocess.Popen[str] | None = None

    def start(self, *options):
        """Start `up` and return its lines up to the ready one."""
        self.process = subprocess.Popen(
            [*COMMAND, "up", "--gpus", "4", "--state-dir", str(self.state_dir), *options],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self.read_until("ready: ")

    def read_until(self, text):
        seen = []
        while line := self.process.stdout.readline():
            seen.append(line)
            if text in line:
                return seen
        raise AssertionError(f"{text!r} never came:\n{''.join(seen)}")

    def run(self, *arguments, **options):
        """Run a command to its end."""
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            **options,
        )

    def out(self, *arguments):
        """Return what a command that succeeds prints."""
        result = self.run(*arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout.decode()

    def submit(self, *arguments):
        return int(self.out("submit", "-q", *arguments))

    def send(self, number):
        self.process.send_signal(number)

    def stop(self, number=signal.SIGINT):
        """Stop `up` as the user would, and return what it said and its code."""
        self.send(number)
        said = self.process.stdout.read()
        return said, self.process.wait(PATIENCE_S)

    def close(self):
        if self.process and self.process.poll() is None:
            self.send(signal.SIGINT)
            time.sleep(0.2)
            self.send(signal.SIGINT)
            self.process.wait(PATIENCE_S)
        if self.process:
            self.process.stdout.close()


def processes_of(folder: Path):
    """Every process whose command line or environment names the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values(), process.cwd()]
        except (psutil.Error, OSError):
            continue
        is_ours = process.pid != os.getpid() and any(str(folder) in word for word in words)
        if is_ours and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def until_gone(folder: Path, timeout_s=PATIENCE_S):
    """Wait until no process of the folder is left; return those that stay."""
    deadline_s = time.monotonic() + timeout_s
    while (left := processes_of(folder)) and time.monotonic() < deadline_s:
        psutil.wait_procs(left, timeout=0.2)
    return left
