"""A job whose preemptions are costly is left alone for longer."""

from broker.schemas.run import RunResumed, StopReason
from tests.unit.scheduler_svc.mesh import Mesh

SECOND_MS = 1_000


def preempted_and_back(**settings):
    """A job that was preempted for 4 s of saving, and needed 6 s to its first step again."""
    mesh = Mesh({"n": 1}, queue_limits_gpu_ms=(10 * SECOND_MS,), **settings)
    long_id = mesh.submit()
    mesh.advance(10 * SECOND_MS)
    mesh.deaf.add("n")
    short_id = mesh.submit()
    mesh.advance(4 * SECOND_MS)
    mesh.deaf.clear()
    mesh.exit(f"{long_id}-1", "n", code=75, asked=StopReason.PREEMPT)
    mesh.finish(short_id)
    mesh.advance(6 * SECOND_MS)
    mesh.send(RunResumed(node="n", run_id=f"{long_id}-2", step=7))
    return mesh, long_id


def test_a_resumed_job_is_exempt_for_a_multiple_of_what_the_preemption_cost():
    mesh, long_id = preempted_and_back(preempt_exempt_costs=8)
    next_id = mesh.submit()
    mesh.advance(8 * 10 * SECOND_MS - 6 * SECOND_MS - 1)
    assert mesh.states(long_id, next_id) == ["RUNNING", "QUEUED"]
    mesh.advance(1)
    assert mesh.states(long_id, next_id) == ["QUEUED", "RUNNING"]


def test_without_the_rule_it_is_preempted_at_once():
    mesh, long_id = preempted_and_back(preempt_exempt_costs=0)
    next_id = mesh.submit()
    assert mesh.states(long_id, next_id) == ["QUEUED", "RUNNING"]


def test_the_fixed_time_holds_when_it_is_longer():
    mesh, long_id = preempted_and_back(preempt_exempt_costs=0, preempt_exempt_ms=20 * SECOND_MS)
    next_id = mesh.submit()
    mesh.advance(14 * SECOND_MS - 1)
    assert mesh.states(long_id, next_id) == ["RUNNING", "QUEUED"]
    mesh.advance(1)
    assert mesh.states(long_id, next_id) == ["QUEUED", "RUNNING"]
