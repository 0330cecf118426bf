"""What users ask for, and how a job ends or waits again."""

import pytest

from broker.schemas.command import StopRun
from broker.schemas.fact import JobEnded, JobHeld, JobQueued, JobRejected
from broker.schemas.job import (
    JobCancelRequested,
    JobHoldRequested,
    JobRefused,
    JobReleaseRequested,
    Problem,
    RestartSpec,
)
from broker.schemas.run import RunExited, RunStarted, StopReason
from tests.unit.scheduler_svc.mesh import Mesh


def hold(mesh, job):
    mesh.send(JobHoldRequested(job_id=job, user="ann"))


def release(mesh, job):
    mesh.send(JobReleaseRequested(job_id=job, user="ann"))


def test_a_jobs_number_is_its_place_in_the_log():
    mesh = Mesh()
    assert [mesh.submit(), mesh.submit()] == [1, 2]
    assert [fact.job_id for fact in mesh.kinds([JobQueued])] == [1, 2]


def test_a_request_that_is_no_job_is_shown_as_rejected_and_never_scheduled():
    mesh = Mesh({"a": 1})
    problems = (Problem(path="gpus", message="unknown key"), Problem(path="run", message="missing"))
    job = mesh.send(JobRefused(user="ann", name="x", problems=problems))
    view = mesh.view(job)
    assert (view.state, view.message) == ("REJECTED", "gpus: unknown key; run: missing")
    assert [fact.job_id for fact in mesh.kinds([JobRejected])] == [job]
    assert mesh.core.explain(job) is None


def test_a_job_ends_once_and_is_then_forgotten():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.finish(job)
    assert mesh.core.explain(job).state == "SUCCEEDED"
    mesh.cancel(job)
    hold(mesh, job)
    release(mesh, job)
    assert mesh.core.explain(job) is None
    assert [fact.state for fact in mesh.kinds([JobEnded])] == ["SUCCEEDED"]


@pytest.mark.parametrize("phase", ["queued", "held", "claiming", "backoff"])
def test_a_job_that_waits_is_cancelled_at_once(phase):
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    other = mesh.submit(restart=RestartSpec(max=5))
    if phase == "claiming":
        mesh.advance(1_000)
        mesh.deaf.add("a")
    job = mesh.submit()
    if phase == "held":
        hold(mesh, job)
    if phase == "backoff":
        job = other
        mesh.finish(job, code=1)
        assert mesh.view(job).reason == "Backoff"
    mesh.cancel(job)
    view = mesh.view(job)
    assert (view.state, view.reason, view.message) == ("CANCELLED", "Cancelled", "cancelled by ann")
    mesh.listen("a")
    assert mesh.state(mesh.submit()) in {"RUNNING", "QUEUED"}


@pytest.mark.parametrize("phase", ["preparing", "one of two up", "running", "stopping"])
def test_a_job_with_a_run_is_cancelled_when_nothing_of_it_is_left(phase):
    mesh = Mesh({"a": 1, "b": 1})
    mesh.deaf = {"a", "b"} if phase in {"preparing", "one of two up"} else set()
    job = mesh.submit(2, grace="5s")
    mesh.deaf = {"a", "b"}
    if phase == "one of two up":
        mesh.send(RunStarted(node="a", run_id=f"{job}-1", pids={}))
    if phase == "stopping":
        hold(mesh, job)
    mesh.unheard.clear()
    mesh.cancel(job)
    assert mesh.state(job) == "STOPPING"
    assert {(s.reason, s.grace_ms) for s in mesh.kinds([StopRun])} == {(StopReason.CANCEL, 5_000)}
    mesh.send(RunExited(node="a", run_id=f"{job}-1", asked=StopReason.CANCEL))
    assert mesh.state(job) == "STOPPING"
    mesh.send(RunExited(node="b", run_id=f"{job}-1", asked=StopReason.CANCEL))
    assert mesh.state(job) == "CANCELLED"
    mesh.deaf.clear()
    assert mesh.state(mesh.submit(2)) == "RUNNING"


def test_a_second_cancel_changes_nothing_unless_it_is_forced():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.deaf.add("a")
    mesh.cancel(job)
    mesh.cancel(job)
    assert [stop.grace_ms for stop in mesh.kinds([StopRun])] == [60_000]
    mesh.cancel(job, force=True)
    assert [stop.grace_ms for stop in mesh.kinds([StopRun])] == [60_000, 0]


def test_a_cancel_in_the_instant_of_the_end_comes_too_late():
    """The launch limit is due before the cancel arrives, and ends the cancelled job."""
    mesh = Mesh({"a": 1})
    mesh.deaf.add("a")
    job = mesh.submit()
    mesh.cancel(job)
    mesh.now_ms += 100_000
    for late in (JobCancelRequested, JobHoldRequested, JobReleaseRequested):
        mesh.send(late(job_id=job))
    assert mesh.state(job) == "CANCELLED"
    assert len(mesh.kinds([JobEnded])) == 1


def test_requests_in_the_instant_of_the_end_find_the_job_ended():
    for late in (JobCancelRequested, JobHoldRequested, JobReleaseRequested):
        mesh = Mesh({"a": 1})
        mesh.deaf.add("a")
        job = mesh.submit()
        if late is JobReleaseRequested:
            hold(mesh, job)
        mesh.cancel(job)
        mesh.now_ms += 100_000
        mesh.send(late(job_id=job))
        assert mesh.state(job) == "CANCELLED"


def test_a_job_that_finished_although_it_was_cancelled_has_succeeded():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.deaf.add("a")
    mesh.cancel(job)
    mesh.finish(job)
    assert mesh.state(job) == "SUCCEEDED"


def test_a_held_job_waits_until_it_is_released():
    mesh = Mesh({"a": 1})
    first = mesh.submit()
    job = mesh.submit()
    hold(mesh, job)
    hold(mesh, job)
    mesh.finish(first)
    assert (mesh.state(job), len(mesh.kinds([JobHeld]))) == ("HELD", 1)
    release(mesh, job)
    release(mesh, job)
    assert mesh.state(job) == "RUNNING"
    assert [fact.reason for fact in mesh.kinds([JobQueued])] == ["", "", "Released"]


def test_a_running_job_that_is_held_and_released_while_it_stops_goes_on_afterwards():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.deaf.add("a")
    hold(mesh, job)
    release(mesh, job)
    assert mesh.state(job) == "STOPPING"
    mesh.listen("a")
    assert mesh.state(job) == "RUNNING"


def failing(mesh, job, code=1, signal=None):
    mesh.finish(job, code=code, signal=signal)
    mesh.advance(100_000)
    return mesh.state(job)


def test_only_own_failures_use_up_the_restart_limit():
    mesh = Mesh({"a": 1})
    job = mesh.submit(restart=RestartSpec(max=2))
    for attempt in range(1, 6):
        mesh.exit(f"{job}-{attempt}", "a", code=75, asked=StopReason.SHUTDOWN)
    assert failing(mesh, job) == "RUNNING"
    assert (mesh.view(job).preemptions, mesh.view(job).failures) == (5, 1)
    assert failing(mesh, job) == "RUNNING"
    assert failing(mesh, job) == "FAILED"
    view = mesh.view(job)
    assert (view.reason, view.failures, view.exit_code) == ("TaskFailed", 3, 1)
    assert view.message == "worker-0 (rank 0) on a: exit 1"


def test_pauses_before_restarts_double():
    mesh = Mesh({"a": 1})
    job = mesh.submit(restart=RestartSpec(max=5))
    pauses = []
    for _ in range(3):
        mesh.finish(job, code=1)
        pauses.append(mesh.core.next_deadline_ms() - mesh.now_ms)
        mesh.advance(pauses[-1])
    assert pauses == [1_000, 2_000, 4_000]


@pytest.mark.parametrize(
    ("rules", "code", "signal", "state"),
    [
        (RestartSpec(max=0), 1, None, "FAILED"),
        (RestartSpec(max=1, on_exit=(3, 4)), 4, None, "RUNNING"),
        (RestartSpec(max=1, on_exit=(3, 4)), 5, None, "FAILED"),
        (RestartSpec(max=1, on_exit=(3, 4)), None, 11, "FAILED"),
        (RestartSpec(max=1, never_on_exit=(2,)), 2, None, "FAILED"),
        (RestartSpec(max=1, never_on_exit=(2,)), 3, None, "RUNNING"),
        (RestartSpec(max=1, never_on_exit=(2,)), None, 11, "RUNNING"),
        (RestartSpec(max=1, on_exit=(2,), never_on_exit=(2,)), 2, None, "FAILED"),
    ],
)
def test_restart_rules_look_at_the_exit_code(rules, code, signal, state):
    mesh = Mesh({"a": 1})
    job = mesh.submit(restart=rules)
    assert failing(mesh, job, code=code, signal=signal) == state


def test_a_job_that_failed_waits_with_its_queue_and_its_service():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    job = mesh.submit(restart=RestartSpec(max=1))
    mesh.advance(1_500)
    mesh.finish(job, code=1)
    view = mesh.view(job)
    assert (view.state, view.queue_index, view.attained_gpu_ms) == ("QUEUED", 1, 1_500)


def test_a_job_held_while_its_run_fails_stays_held():
    mesh = Mesh({"a": 1})
    job = mesh.submit(restart=RestartSpec(max=1))
    mesh.deaf.add("a")
    hold(mesh, job)
    mesh.finish(job, code=1)
    assert mesh.state(job) == "HELD"
