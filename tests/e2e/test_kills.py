"""Kill -9 of each service while a job runs: the job is not lost, not doubled, not restarted."""

import re
from datetime import datetime

import pytest

SERVICES = {
    "scheduler": ("scheduler_svc",),
    "launcher": ("launcher", "node-0"),
    "agent": ("node_agent", "node-0"),
    "nats-server": ("nats-server",),
}
HEARTBEAT_MS = 2_000


def milliseconds(since: str, until: str) -> int:
    """Between two times as JSON tells them."""
    elapsed = datetime.fromisoformat(until) - datetime.fromisoformat(since)
    return round(elapsed.total_seconds() * 1000)


@pytest.mark.parametrize("service", SERVICES)
def test_a_job_outlives_the_kill_of_a_service(cluster, service):
    job_id = cluster.submit_loop(60, "-n", f"loop-{service}", "--gpus", "2")
    before = cluster.wait_state(job_id, "RUNNING")
    processes = {process.pid for process in cluster.job_processes(job_id)}
    assert processes

    cluster.kill(*SERVICES[service])

    assert processes <= {process.pid for process in cluster.job_processes(job_id)}
    view = cluster.wait_state(job_id, "SUCCEEDED", "FAILED")
    assert (view["state"], view["attempts"], view["preemptions"]) == ("SUCCEEDED", 1, 0)
    assert view["run_id"] is None
    assert view["runs"][0]["run_id"] == before["run_id"]
    ran_ms = milliseconds(view["runs"][0]["running_at"], view["runs"][0]["ended_at"])
    assert view["attained_gpu_ms"] == 2 * ran_ms
    assert abs(ran_ms - 6_000) <= HEARTBEAT_MS
    assert cluster.job_processes(job_id) == []
    assert cluster.logs(job_id).splitlines() == [
        "starting at step 0",
        *(f"step {step}" for step in range(1, 61)),
        "done: 60 steps",
    ]


def test_a_cluster_whose_services_were_all_killed_still_preempts_and_resumes(cluster):
    long_id = cluster.submit_loop(100, "-n", "long", "--workers", "8")
    cluster.wait_state(long_id, "RUNNING")
    for words in SERVICES.values():
        cluster.kill(*words)

    assert cluster.run("hold", str(long_id)).returncode == 0
    cluster.wait_state(long_id, "HELD")
    assert cluster.job_processes(long_id) == []
    short_id = cluster.submit_loop(5, "-n", "short")
    assert cluster.wait_state(short_id, "SUCCEEDED")["attempts"] == 1
    assert cluster.run("release", str(long_id)).returncode == 0

    view = cluster.wait_state(long_id, "SUCCEEDED", timeout_s=120)
    assert [run["outcome"] for run in view["runs"]] == ["PREEMPTED", "SUCCEEDED"]
    starts = re.findall(r"starting at step (\d+)", cluster.logs(long_id, "--task", "worker-0"))
    assert int(starts[-1]) > 0
