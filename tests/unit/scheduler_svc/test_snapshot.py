"""A core rebuilt from its snapshot decides as the one it was taken from."""

import msgspec
import pytest

from broker.schemas.job import JobHoldRequested
from broker.schemas.node import NodeCordonRequested
from broker.schemas.operator import SkewMeasured
from scheduler_svc.core.errors import InvariantError
from scheduler_svc.core.scheduler import Scheduler
from tests.unit.scheduler_svc.mesh import Mesh


def reborn(mesh):
    """The same mesh, its core rebuilt."""
    mesh.core = Scheduler.restore(mesh.core.snapshot(), is_checked=True)
    return mesh


def test_a_rebuilt_core_is_the_same_to_the_byte():
    mesh = Mesh({"a": 2, "b": 1}, queue_limits_gpu_ms=(1_000,), promote_knob=1.0)
    jobs = [mesh.submit(gpus) for gpus in (2, 1, 3, 1)]
    mesh.send(JobHoldRequested(job_id=jobs[3], user="ann"))
    mesh.send(NodeCordonRequested(node="b", user="root"))
    mesh.send(SkewMeasured(job_id=jobs[0], skew=0.5))
    mesh.advance(700)
    before = mesh.core
    after = Scheduler.restore(before.snapshot())
    assert after.snapshot() == before.snapshot()
    assert after.all_views() == before.all_views()
    assert (after.now_ms, after.settings) == (before.now_ms, before.settings)
    assert after.next_deadline_ms() == before.next_deadline_ms()


def test_queues_clocks_and_claims_survive():
    mesh = Mesh({"a": 2}, queue_limits_gpu_ms=(1_000,))
    low = mesh.submit(2)
    mesh.advance(500)
    mesh.deaf.add("a")
    high = mesh.submit(2)
    reborn(mesh)
    assert mesh.core.explain(low).queue_index == 1
    assert mesh.core.explain(high).reason == "WaitingForPreemption"
    mesh.listen("a")
    assert mesh.states(low, high) == ["QUEUED", "RUNNING"]


def test_a_job_that_has_just_ended_is_shown_once_more_and_then_forgotten():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.finish(job)
    reborn(mesh)
    assert mesh.core.explain(job).state == "SUCCEEDED"
    mesh.submit()
    assert mesh.core.explain(job) is None


def test_damaged_and_foreign_snapshots_are_refused():
    data = Mesh({"a": 1}).core.snapshot()
    with pytest.raises(msgspec.MsgspecError):
        Scheduler.restore(data[:-1])
    saved = msgspec.msgpack.decode(data)
    saved["format"] = 99
    with pytest.raises(InvariantError, match="snapshot has format 99, this version reads 1"):
        Scheduler.restore(msgspec.msgpack.encode(saved))
