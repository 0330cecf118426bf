"""Finish times of every job, against those of an independent plain reference.

The reference counts in whole seconds, so here one unit of the engine's time is a second. The small
workloads are kept beside the tests; all workloads and policies run if `TIRESIAS_GOLDEN` names a
folder that has the larger ones.
"""

import csv
import os
from pathlib import Path

import pytest

from broker.schemas.operator import Settings
from simulator.replay import TraceJob, replay

DATA = Path(__file__).parents[1] / "data" / "golden"
LARGER_DATA = os.environ.get("TIRESIAS_GOLDEN", "")
GPUS = {"tiresias_60x10": 16, "bins_480": 60, "bins_2000": 60}


def las(*limits: int, **fields) -> Settings:
    """Tiresias-L with limits in GPU-seconds; preemption is free."""
    return Settings(
        queue_limits_gpu_ms=limits,
        promote_floor_ms=0,
        preempt_exempt_ms=0,
        preempt_exempt_costs=0,
        **fields,
    )


POLICIES = {
    "fifo": Settings(policy="fifo"),
    "best_effort": las(),
    "las_k1": las(),
    "las_k2": las(3600),
    "las_k3": las(3600, 7200),
    "las_k2_start_time": las(3600, queue_order="start_time"),
    "las_k2_knob1": las(3600, promote_knob=1.0),
    "las_k2_knob4": las(3600, promote_knob=4.0),
}
QUICK_ON_480 = ("fifo", "las_k2", "las_k2_start_time", "las_k2_knob1")


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def assert_same_finish(folder: Path, workload: str, policy: str) -> None:
    jobs = [
        TraceJob(
            job_id=int(row["job_id"]),
            submit_ms=int(row["submit_time_s"]),
            workers=int(row["num_gpus"]),
            duration_ms=int(row["duration_s"]),
        )
        for row in rows(folder, f"{workload}.csv")
    ]
    expected = {
        int(row["job_id"]): int(row[policy]) for row in rows(folder, f"{workload}.finish.csv")
    }
    nodes = {f"n{i:03}": 1 for i in range(GPUS[workload])}
    assert replay(jobs, nodes, POLICIES[policy]).finish_ms == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_of_60_finishes_in_the_second_of_the_reference(policy):
    assert_same_finish(DATA, "tiresias_60x10", policy)


@pytest.mark.parametrize("policy", QUICK_ON_480)
def test_every_job_of_480_finishes_in_the_second_of_the_reference(policy):
    assert_same_finish(DATA, "bins_480", policy)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not LARGER_DATA, reason="TIRESIAS_GOLDEN names no folder")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workload", ["bins_480", "bins_2000"])
def test_every_job_finishes_in_the_second_of_the_reference(workload, policy):
    assert_same_finish(Path(LARGER_DATA), workload, policy)
