"""Cancel in every phase: the job is cancelled in its grace, no process is left, GPUs are free."""

import sys
import time

import pytest

SLACK_S = 5
STUBBORN = "trap '' TERM; echo up; while true; do sleep 1; done"
SLOW_SAVE = "trap 'sleep 3; exit 75' TERM; echo up; while true; do sleep 0.2; done"


def cancel(cluster, job_id: int, *flags: str) -> float:
    """Cancel and check what must hold afterwards; return how long it took."""
    began = time.monotonic()
    done = cluster.run("cancel", str(job_id), *flags)
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert cluster.view(job_id)["state"] == "CANCELLED"
    assert cluster.job_processes(job_id) == []
    assert cluster.owned_gpus() == []
    again = cluster.run("cancel", str(job_id), *flags)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    return took_s


def shell_job(cluster, script: str, *flags: str) -> int:
    return cluster.submit("--grace", "2s", *flags, "--", "bash", "-c", script)


def test_a_queued_job_is_cancelled_at_once(cluster):
    job_id = shell_job(cluster, "sleep 100", "--workers", "9")
    assert cluster.view(job_id)["state"] == "QUEUED"
    assert cancel(cluster, job_id) < SLACK_S


def test_a_job_is_cancelled_in_the_moment_it_starts(cluster):
    job_id = shell_job(cluster, "sleep 100", "--workers", "8")
    assert cancel(cluster, job_id) < SLACK_S


def test_a_running_job_is_asked_and_then_killed_at_its_grace(cluster):
    job_id = shell_job(cluster, STUBBORN, "--workers", "8")
    cluster.wait_state(job_id, "RUNNING")
    cluster.until(lambda: "up" in cluster.logs(job_id, "--task", "worker-0"), "the first line")
    assert 2 <= cancel(cluster, job_id) < 2 + SLACK_S


def test_force_does_not_wait_for_the_grace(cluster):
    job_id = cluster.submit("--grace", "60s", "--", "bash", "-c", STUBBORN)
    cluster.wait_state(job_id, "RUNNING")
    assert cancel(cluster, job_id, "--force") < SLACK_S


def test_a_job_that_is_being_preempted_is_cancelled(cluster):
    job_id = cluster.submit("--grace", "20s", "--", "bash", "-c", SLOW_SAVE)
    cluster.wait_state(job_id, "RUNNING")
    cluster.until(lambda: "up" in cluster.logs(job_id), "the first line")
    with cluster.start_command("hold", str(job_id)):
        cluster.wait_state(job_id, "STOPPING")
        assert cancel(cluster, job_id) < 3 + SLACK_S


def test_a_job_that_has_just_ended_stays_what_it_is(cluster):
    job_id = cluster.submit("--", sys.executable, "-c", "pass")
    cluster.wait_state(job_id, "SUCCEEDED")
    done = cluster.run("cancel", str(job_id))
    assert done.returncode == 4, done.stderr
    assert cluster.view(job_id)["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("command", "code", "job_code"),
    [
        (("true",), 0, "0:0"),
        (("false",), 100, "1:0"),
        (("bash", "-c", "exit 3"), 100, "3:0"),
        (("bash", "-c", "kill -SEGV $$"), 100, "0:11"),
        (("no-such-command-here",), 100, "127:0"),
    ],
)
def test_wait_tells_by_its_exit_code_how_the_job_ended(cluster, command, code, job_code):
    job_id = cluster.submit("--", *command)
    assert cluster.run("wait", str(job_id)).returncode == code
    assert job_code in cluster.run("show", str(job_id)).stdout


def test_a_failing_part_of_a_pipe_fails_the_script(cluster, tmp_path):
    job_file = tmp_path / "job.yaml"
    job_file.write_text("name: pipe\nrun: |\n  false | cat\n")
    done = cluster.run("submit", str(job_file), "--wait")
    assert done.returncode == 100
