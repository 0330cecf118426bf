"""Starts training scripts as a launcher would, and asks them to stop."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.free_ports import free_ports

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120


class Gang:
    """The processes of one attempt; `output` is what each task has printed."""

    def __init__(self, folder, script, *arguments, roles=("worker-0",), attempt=1):
        self.folder = folder
        self.deadline_s = time.monotonic() + DEADLINE_S
        cluster = {}
        for role, port in zip(roles, free_ports(len(roles)), strict=True):
            cluster.setdefault(role.partition("-")[0], []).append(f"127.0.0.1:{port}")
        self.logs = {role: folder / f"{role}.{attempt}.log" for role in roles}
        self.processes = {}
        for role in roles:
            with self.logs[role].open("w") as log:
                self.processes[role] = subprocess.Popen(
                    [sys.executable, "-u", str(ROOT / script), *arguments],
                    env=self.variables(cluster, role, attempt),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def variables(self, cluster, role, attempt):
        name, _, index = role.partition("-")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIRESIAS_")}
        config = {"cluster": cluster, "task": {"type": name, "index": int(index)}}
        return {
            **inherited,
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TIRESIAS_RUN_ID": f"7-{attempt}",
            "TIRESIAS_ATTEMPT": str(attempt),
            "TIRESIAS_ROLE": name,
            "TIRESIAS_INDEX": index,
            "TIRESIAS_RANK": index,
            "TIRESIAS_WORLD_SIZE": str(len(cluster["worker"])),
            "TIRESIAS_CHECKPOINT_DIR": str(self.folder / "saves"),
            **({"TF_CONFIG": json.dumps(config)} if len(self.logs) > 1 else {}),
        }

    def output(self, role):
        return self.logs[role].read_text()

    def wait_for(self, role, text):
        while text not in self.output(role):
            assert self.processes[role].poll() is None, self.output(role)
            assert time.monotonic() < self.deadline_s, self.output(role)
            time.sleep(0.01)

    def ask_to_stop(self, *, seconds_between=0.0):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
            time.sleep(seconds_between)

    def wait(self, *roles):
        """Return the exit codes of some tasks, or of all."""
        for role in roles or self.processes:
            self.processes[role].wait(max(0.1, self.deadline_s - time.monotonic()))
        return [self.processes[role].returncode for role in roles or self.processes]

    def kill(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def start(tmp_path):
    gangs = []

    def start(script, *arguments, folder="attempts", **options):
        (tmp_path / folder).mkdir(exist_ok=True)
        gangs.append(Gang(tmp_path / folder, script, *arguments, **options))
        return gangs[-1]

    yield start
    for gang in gangs:
        gang.kill()


@pytest.fixture
def chance():
    """Random numbers whose seed a failing test prints."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201
    return random.Random(seed)
