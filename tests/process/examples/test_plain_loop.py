"""The example without the library keeps the contract of plain scripts: TERM, save, exit 75."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[3] / "examples" / "plain_loop.py"


def start(folder, steps):
    return subprocess.Popen(
        [sys.executable, "-u", str(EXAMPLE), "--steps", str(steps), "--step-ms", "20"],
        env={**os.environ, "TIRESIAS_CHECKPOINT_DIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_plain_script_saves_on_sigterm_and_goes_on_where_it_was(tmp_path):
    with start(tmp_path, steps=3_000) as first:
        for line in first.stdout:
            if line == "step 5\n":
                first.send_signal(signal.SIGTERM)
    assert first.returncode == 75
    saved = int(line.removeprefix("step "))
    with start(tmp_path, steps=saved + 2) as second:
        lines = second.stdout.read().splitlines()
    assert second.returncode == 0
    assert lines[0] == f"starting at step {saved}"
    assert lines[-1] == f"done: {saved + 2} steps"
