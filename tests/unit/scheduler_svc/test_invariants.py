"""Each rule that always holds, broken on purpose, is named."""

import pytest

from broker.schemas.node import GpuFaultReason
from scheduler_svc.core.errors import InvariantError
from scheduler_svc.core.lifecycle import JobPhase
from tests.unit.scheduler_svc.mesh import Mesh

GPU = {"a": [["a-gpu0"]]}


def healthy():
    """Two running jobs, one that waits."""
    mesh = Mesh({"a": 2}, queue_limits_gpu_ms=(1_000,))
    jobs = [mesh.core._world.jobs[mesh.submit()] for _ in range(3)]
    mesh.core.check()
    return mesh, mesh.core._world, jobs


def lose_run(world, jobs):
    jobs[0].run = None


def lose_placement(world, jobs):
    jobs[0].placement = None


def end_in_queue(world, jobs):
    jobs[2].phase = JobPhase.ENDED


def turn_clock_back(world, jobs):
    jobs[0].executed_ms = -1


def run_and_wait(world, jobs):
    jobs[0].waiting_since_ms = 0


def shrink_gang(world, jobs):
    jobs[0].placement = {"a": []}


def steal_gpu(world, jobs):
    world.cluster.gpu("a", "a-gpu0").owner = "77-1"


def free_gpu(world, jobs):
    world.cluster.gpu("a", "a-gpu0").owner = None


def break_gpu(world, jobs):
    world.cluster.gpu("a", "a-gpu0").fault = GpuFaultReason.XID


def outlive_limit(world, jobs):
    jobs[2].executed_ms = 1_000


def promise_twice(world, jobs):
    jobs[0].claim = jobs[2].claim = GPU


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lose_run, "is active with run None"),
        (lose_placement, "has placement None with run"),
        (end_in_queue, "is over and still in a queue"),
        (turn_clock_back, "has a negative clock"),
        (run_and_wait, "runs and waits at once"),
        (shrink_gang, "holds 0 GPUs of 1"),
        (steal_gpu, r"does not own \('a', 'a-gpu0'\)"),
        (free_gpu, r"does not own \('a', 'a-gpu0'\)"),
        (break_gpu, r"runs on \('a', 'a-gpu0'\): Xid"),
        (outlive_limit, "has 1000 in the queue up to 1000"),
        (promise_twice, r"GPU \('a', 'a-gpu0'\) is promised twice"),
    ],
)
def test_a_broken_rule_is_named(damage, problem):
    mesh, world, jobs = healthy()
    damage(world, jobs)
    with pytest.raises(InvariantError, match=problem):
        mesh.core.check()


def test_a_gpu_left_with_a_run_that_is_over_is_named():
    mesh, _, jobs = healthy()
    jobs[0].run = jobs[0].placement = None
    jobs[0].phase = JobPhase.QUEUED
    with pytest.raises(InvariantError, match=f"is owned by run {jobs[0].job_id}-1, which is over"):
        mesh.core.check()
