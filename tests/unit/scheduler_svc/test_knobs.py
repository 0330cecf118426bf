"""Skews, PACKLIMIT and settings that change while jobs run and wait."""

import pytest

from broker.schemas.fact import JobDemoted, JobPromoted
from broker.schemas.operator import PackLimitChanged, Settings, SettingsChanged, SkewMeasured
from broker.schemas.run import TensorsObserved
from scheduler_svc.core import world as world_module
from tests.unit.scheduler_svc.mesh import Mesh


def spread_over(mesh, job):
    return len(mesh.view(job).placement)


def test_a_measured_skew_is_remembered_for_the_next_job_of_the_same_name_and_user():
    mesh = Mesh({"a": 4})
    job = mesh.submit(1, name="vgg")
    mesh.send(SkewMeasured(job_id=job, skew=0.7))
    mesh.send(SkewMeasured(job_id=999, skew=0.1))
    assert mesh.view(job).skew == 0.7
    assert mesh.view(mesh.submit(1, name="vgg")).skew == 0.7
    assert mesh.view(mesh.submit(1, name="resnet")).skew is None
    assert mesh.core.explain(job).story[-1].endswith("skew 0.700 measured by profiler")


def test_the_skew_of_a_job_is_its_largest_tensor_over_all():
    mesh = Mesh({"a": 1})
    job = mesh.submit(1)
    mesh.send(TensorsObserved(node="a", run_id=f"{job}-1", tensor_bytes=(10, 60, 30)))
    assert mesh.view(job).skew == 0.6


@pytest.mark.parametrize("sizes", [(), (0, 0), (-5, 10)])
def test_tensors_that_make_no_sense_tell_nothing(sizes):
    mesh = Mesh({"a": 1})
    job = mesh.submit(1)
    mesh.send(TensorsObserved(node="a", run_id=f"{job}-1", tensor_bytes=sizes))
    mesh.send(TensorsObserved(node="a", run_id="77-1", tensor_bytes=(1,)))
    assert mesh.view(job).skew is None


def test_only_so_many_skews_are_remembered(monkeypatch):
    monkeypatch.setattr(world_module, "MAX_REMEMBERED_SKEWS", 2)
    mesh = Mesh({"a": 9})
    for name in ("one", "two", "one", "three"):
        mesh.send(SkewMeasured(job_id=mesh.submit(1, name=name), skew=0.5))
    skews = [mesh.view(mesh.submit(1, name=name)).skew for name in ("one", "two", "three")]
    assert skews == [0.5, None, 0.5]


def test_a_job_below_the_pack_limit_is_spread_over_fragments():
    mesh = Mesh({"a": 4, "b": 4}, consolidate="require")
    mesh.submit(3)
    first = mesh.submit(1, name="resnet")
    mesh.send(SkewMeasured(job_id=first, skew=0.3))
    mesh.finish(first)
    job = mesh.submit(4, name="resnet")
    assert mesh.view(job).placement["a"] == ("a-gpu3",)
    assert spread_over(mesh, job) == 2


def test_a_new_pack_limit_holds_for_placements_from_then_on():
    mesh = Mesh({"a": 2, "b": 2}, consolidate="require")
    fillers = [mesh.submit(1, name="x") for _ in range(4)]
    mesh.send(SkewMeasured(job_id=fillers[0], skew=0.5))
    job = mesh.submit(2, name="x")
    mesh.finish(fillers[1])
    mesh.finish(fillers[3])
    assert mesh.state(job) == "QUEUED"
    mesh.send(PackLimitChanged(pack_limit=0.5))
    assert spread_over(mesh, job) == 2


def change(mesh, **fields):
    mesh.send(SettingsChanged(settings=Settings(preempt_exempt_ms=0, **fields)))


def test_lower_limits_demote_at_once_whoever_has_passed_them_running_or_waiting():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    one = mesh.submit()
    mesh.advance(1_000)
    two = mesh.submit()
    mesh.advance(300)
    change(mesh, queue_limits_gpu_ms=(100, 200, 5_000))
    assert [mesh.view(job).queue_index for job in (one, two)] == [2, 2]
    told = [(fact.job_id, fact.queue_index) for fact in mesh.kinds([JobDemoted])]
    assert told[1:] == [(one, 2), (two, 1), (two, 2)]


def test_higher_limits_take_effect_at_the_new_crossing_time():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    job = mesh.submit()
    mesh.advance(900)
    change(mesh, queue_limits_gpu_ms=(2_000,))
    mesh.advance(1_099)
    assert mesh.view(job).queue_index == 0
    mesh.advance(1)
    assert mesh.core.explain(job).queue_index == 1


def test_under_fifo_nobody_is_demoted_any_more_and_back_again_who_is_due_is():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    job = mesh.submit()
    change(mesh, policy="fifo")
    assert mesh.core.explain(job).next_limit_gpu_ms is None
    mesh.advance(9_000)
    assert mesh.kinds([JobDemoted, JobPromoted]) == []
    waiting = mesh.submit()
    change(mesh, queue_limits_gpu_ms=(1_000,))
    assert mesh.view(job).queue_index == 1
    assert mesh.states(job, waiting) == ["QUEUED", "RUNNING"]
