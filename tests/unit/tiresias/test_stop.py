"""Leaving with the code that means saved and stopped."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

SCRIPT = """
import atexit, os, signal, tiresias
atexit.register(print, "handler before")
job = tiresias.init(checkpoint_dir="{folder}")
atexit.register(print, "handler after")
os.kill(os.getpid(), signal.SIGTERM)
try:
    job.step(1)
    job.stop_if_asked(1, {{"step": 1}})
finally:
    os.kill(os.getpid(), signal.SIGTERM)
    print("unwound")
"""


def test_a_stopped_process_unwinds_runs_its_exit_handlers_and_has_the_code(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (75, "")
    assert done.stdout.splitlines() == ["unwound", "handler after", "handler before"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
