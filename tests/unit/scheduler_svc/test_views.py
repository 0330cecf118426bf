"""What people see of jobs and nodes, and the sentences that say why."""

import pytest

from broker.schemas.job import JobHoldRequested
from broker.schemas.operator import SettingsChanged, SkewMeasured
from broker.schemas.views import JobView, NodeView, WaitReason
from scheduler_svc.core.explain import wait_message
from scheduler_svc.core.job import Job, Wait
from tests.unit.scheduler_svc.mesh import START_MS, Mesh


def test_a_view_shows_the_job_and_never_its_command_or_environment():
    mesh = Mesh({"a": 2})
    job = mesh.submit(2, env={"TOKEN": "secret"}, labels={"team": "vision"})
    view = mesh.view(job)
    assert (view.state, view.gpus, view.labels) == ("RUNNING", 2, {"team": "vision"})
    assert view.placement == {"a": ("a-gpu0", "a-gpu1")}
    assert view.tasks == {"worker-0": "a", "worker-1": "a"}
    assert (view.run_id, view.attempts, view.counting) == (f"{job}-1", 1, True)
    assert (view.submitted_at_ms, view.started_at_ms) == (START_MS, START_MS)
    assert "secret" not in str(view)
    assert "train" not in str(view)


def test_clocks_of_a_view_are_those_of_its_time():
    mesh = Mesh({"a": 1})
    one, two = mesh.submit(), mesh.submit()
    mesh.advance(70)
    mesh.finish(one)
    assert (mesh.view(one).attained_gpu_ms, mesh.view(one).counting) == (70, False)
    assert mesh.view(two).waited_ms == 70
    assert mesh.view(one).ended_at_ms == mesh.now_ms


def test_only_changed_views_are_given_and_each_once():
    mesh = Mesh({"a": 1, "b": 1})
    job = mesh.submit()
    assert mesh.core.take_changed_views() == []
    mesh.now_ms += 1
    mesh.core.handle(99, SkewMeasured(job_id=job, skew=0.1), mesh.now_ms)
    views = mesh.core.take_changed_views()
    assert [view.job_id for view in views if isinstance(view, JobView)] == [job]
    assert [view.node for view in views if isinstance(view, NodeView)] == ["a"]


def test_all_views_are_those_of_active_jobs_and_of_every_node():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    names = [getattr(view, "node", None) or view.job_id for view in mesh.core.all_views()]
    assert names == [job, "a"]


def test_new_settings_may_change_every_view():
    mesh = Mesh({"a": 1})
    jobs = [mesh.submit(), mesh.submit()]
    mesh.core.handle(99, SettingsChanged(settings=mesh.core.settings), mesh.now_ms)
    views = mesh.core.take_changed_views()
    assert [view.job_id for view in views if isinstance(view, JobView)] == jobs


def test_a_job_that_waits_for_another_reason_has_a_new_view():
    mesh = Mesh({"a": 1})
    mesh.submit()
    waiting = mesh.submit()
    mesh.send(JobHoldRequested(job_id=waiting, user="ann"))
    assert (mesh.view(waiting).state, mesh.view(waiting).reason) == ("HELD", "Held")


def test_a_stopping_job_shows_why_it_stops():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.deaf.add("a")
    mesh.cancel(job)
    assert (mesh.state(job), mesh.view(job).reason, mesh.view(job).message) == (
        "STOPPING",
        "Cancel",
        "",
    )
    assert mesh.core.explain(job).message == f"run {job}-1 is stopping: Cancel"


def test_a_job_that_was_requeued_shows_why_until_the_next_pass_knows_better():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    record = mesh.core._world.jobs[job]
    record.run, record.wait, record.reason = None, None, "Preempted"
    (view, *_) = mesh.core.all_views()
    assert (view.reason, view.message) == ("Preempted", "")
    assert mesh.core.explain(job).message == "next in line"


def test_explain_gives_the_numbers_that_decide():
    mesh = Mesh({"a": 2}, queue_limits_gpu_ms=(1_000,), promote_knob=2.0, promote_floor_ms=0)
    one = mesh.submit(2)
    mesh.advance(600)
    two = mesh.submit(1)
    mesh.advance(400)
    answer = mesh.core.explain(one, mesh.now_ms)
    assert (answer.state, answer.queue_index, answer.next_limit_gpu_ms) == ("QUEUED", 1, None)
    assert (answer.attained_gpu_ms, answer.waited_ms, answer.promoted_at_waited_ms) == (
        1_200,
        400,
        1_200,
    )
    assert (answer.position, answer.ahead_gpus, answer.capacity_gpus) == (2, 1, 2)
    assert answer.story[0].endswith("submitted by ann: 2 GPUs")
    running = mesh.core.explain(two)
    assert (running.next_limit_gpu_ms, running.reason) == (1_000, "")
    assert running.message == f"run {two}-1 is running on a"


def test_explain_of_a_job_that_has_just_ended_says_how():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.finish(job, code=3)
    answer = mesh.core.explain(job)
    assert (answer.state, answer.position, answer.reason) == ("FAILED", None, "")
    assert answer.message == "worker-0 (rank 0) on a: exit 3"
    mesh.submit()
    assert mesh.core.explain(job) is None


@pytest.mark.parametrize("reason", WaitReason)
def test_every_reason_has_a_sentence(reason):
    job = Job(job_id=1, workers=2, gpus_per_worker=2)
    assert wait_message(job) == ""
    job.wait = Wait(reason=reason, needed_gpus=4, free_gpus=3)
    assert len(wait_message(job)) > 10
