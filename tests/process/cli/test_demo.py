"""`tiresias demo` with real processes: it passes, and stopped at any moment leaves nothing."""

import signal
import subprocess

import pytest

from tests.process.cli.support import COMMAND, processes_of, until_gone

pytestmark = [pytest.mark.process, pytest.mark.tf]


def start(up):
    return subprocess.Popen(
        [*COMMAND, "demo"],
        env=up.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("moment", ["starting 2 nodes", "ready: ", "RUNNING"])
def test_ctrl_c_leaves_nothing(up, tmp_path, moment):
    demo = start(up)
    while moment not in demo.stdout.readline():
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    said = demo.communicate(timeout=60)[0]
    assert demo.returncode == 130
    assert "nothing is left running" in said
    assert "Traceback" not in said
    assert list(tmp_path.glob("tiresias-demo-*")) == []
    assert until_gone(tmp_path, timeout_s=1) == []


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_all_promises_are_kept(up, tmp_path):
    demo = start(up)
    said = demo.communicate(timeout=590)[0]
    assert demo.returncode == 0, said
    assert said.count("\nOK ") == 4, said
    assert processes_of(tmp_path) == []
