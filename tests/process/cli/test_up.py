"""`tiresias up` with real processes: jobs run, stop, go on; nothing is left behind."""

import json
import signal
import stat
import subprocess
import sys

import psutil
import pytest

from tests.process.cli.support import COMMAND, ROOT, processes_of, until_gone

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
LOOP = (sys.executable, str(ROOT / "examples" / "plain_loop.py"))


def test_a_job_runs_and_its_output_and_outcome_are_told(up):
    lines = up.start("--nodes", "2")
    assert "2 nodes with 4 simulated GPUs each" in lines[-1]
    assert stat.S_IMODE(up.address_file.stat().st_mode) == 0o600
    job_id = up.submit("-n", "echo", "--", "bash", "-c", "seq 1 5000; printf end; exit 3")
    followed = up.run("logs", "-f", job_id)
    expected = "".join(f"{n}\n" for n in range(1, 5001)) + "end"
    assert (followed.stdout.decode(), followed.returncode) == (expected, 100)
    assert up.run("wait", "echo").returncode == 100
    assert up.run("wait", job_id, "--pass-code").returncode == 3
    document = json.loads(up.out("show", job_id, "-o", "json"))
    assert (document["state"], document["exit_code"]) == ("FAILED", 3)
    nodes = json.loads(up.out("node", "ls", "-o", "json"))
    assert [(node["node"], len(node["gpus"])) for node in nodes] == [("node-0", 4), ("node-1", 4)]
    assert up.run("doctor").returncode == 0


def test_ctrl_c_lets_jobs_save_and_the_next_up_continues_them(up):
    up.start()
    job_id = up.submit("-n", "loop", "--", *LOOP, "--steps", "60")
    follower = subprocess.Popen(
        [*COMMAND, "logs", "-f", str(job_id)], env=up.environment, stdout=subprocess.PIPE, text=True
    )
    while "step 5\n" not in follower.stdout.readline():
        pass
    follower.kill()
    follower.communicate()
    said, code = up.stop()
    assert code == 0
    assert "continue at the next 'tiresias up'" in said
    assert not up.address_file.exists()
    assert until_gone(up.state_dir, timeout_s=5) == []
    up.close()

    up.start()
    assert up.run("wait", job_id).returncode == 0
    assert json.loads(up.out("show", job_id, "-o", "json"))["preemptions"] == 1
    output = up.out("logs", job_id)
    assert output.count("starting at step 0\n") == 1
    steps = [line for line in output.splitlines() if line.startswith("step ")]
    assert steps == [f"step {n}" for n in range(1, 61)]


def test_a_killed_up_leaves_no_process(up):
    up.start()
    stubborn = "trap '' TERM; (setsid sleep 1000 &); while true; do sleep 1; done"
    up.submit("--grace", "1s", "--", "bash", "-c", stubborn)
    up.submit("--grace", "1s", "--", *LOOP, "--steps", "10000")
    while "RUNNING" not in up.out("ls", "--state", "RUNNING"):
        pass
    assert len(processes_of(up.state_dir)) > 4
    up.send(signal.SIGKILL)
    up.process.wait()
    assert until_gone(up.state_dir, timeout_s=45) == []


def test_a_second_ctrl_c_kills_at_once(up):
    up.start()
    up.submit("--grace", "1h", "--", "bash", "-c", "trap '' TERM; while true; do sleep 1; done")
    while "RUNNING" not in up.out("ls", "--state", "RUNNING"):
        pass
    up.send(signal.SIGTERM)
    up.read_until("Ctrl-C again kills")
    _, code = up.stop()
    assert code == 0
    assert until_gone(up.state_dir, timeout_s=2) == []


def test_ctrl_c_while_starting_leaves_nothing(up):
    process = subprocess.Popen(
        [*COMMAND, "up", "--gpus", "1", "--state-dir", str(up.state_dir)],
        env=up.environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert "starting" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert until_gone(up.state_dir, timeout_s=2) == []


def test_a_second_up_on_the_same_folder_says_who_has_it(up):
    up.start()
    second = up.run("up", "--gpus", "1", "--state-dir", up.state_dir)
    assert second.returncode == 1
    assert f"in use by process {up.process.pid}" in second.stderr.decode()
    assert up.out("ls", "-o", "json") == "[]\n"


@pytest.mark.parametrize("service", ["scheduler_svc", "node_agent", "launcher", "nats-server"])
def test_a_killed_service_is_told_and_started_again(up, service):
    up.start()
    job_id = up.submit("--", *LOOP, "--steps", "30")
    victims = [
        process
        for process in psutil.Process(up.process.pid).children()
        if any(service in word for word in process.cmdline()[:4])
    ]
    assert len(victims) == 1
    victims[0].kill()
    up.read_until("again")
    assert up.run("wait", job_id).returncode == 0
    steps = [line for line in up.out("logs", job_id).splitlines() if line.startswith("step ")]
    assert steps == [f"step {n}" for n in range(1, 31)]
    document = json.loads(up.out("show", job_id, "-o", "json"))
    assert (document["attempts"], document["state"]) == (1, "SUCCEEDED")


def test_a_port_in_use_is_told(up):
    up.start()
    port = json.loads(up.address_file.read_text())["url"].rpartition(":")[2]
    second = up.run("up", "--gpus", "1", "--port", port, "--state-dir", up.state_dir / "other")
    assert second.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in second.stderr.decode()


def test_starting_the_command_loads_nothing_slow():
    code = (
        "import sys; from cli import main; main.run(['schema']); "
        "slow = {'nats', 'rich', 'yaml', 'uvloop', 'jsonschema', 'tensorflow'} & set(sys.modules); "
        "sys.exit(f'loaded {sorted(slow)}' if slow else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-500:]


def test_options_that_a_service_refuses_end_the_up_at_once(up):
    result = up.run("up", "--gpus", "1", "--state-dir", up.state_dir, "--queue-limits", "soon")
    assert result.returncode == 1
    said = result.stderr.decode().splitlines()[-1]
    assert said.startswith("tiresias: scheduler refuses its options: ")
    assert until_gone(up.state_dir, timeout_s=2) == []
