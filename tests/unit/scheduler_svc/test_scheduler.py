"""Time, order within an instant, and the place of outputs."""

from broker.schemas.fact import JobDemoted, JobPromoted, RunPlaced
from broker.schemas.job import JobSubmitted
from broker.schemas.operator import ClockAdvanced, SkewMeasured
from broker.schemas.run import RunExited, TaskExit
from scheduler_svc.core.scheduler import Scheduler
from tests.unit.scheduler_svc.mesh import START_MS, Mesh, spec


def test_outputs_are_numbered_by_cause_and_place_and_carry_the_time():
    core = Scheduler()
    outputs = core.handle(7, JobSubmitted(user="ann", spec=spec()), 123)
    assert [(output.output_id, output.at_ms) for output in outputs] == [("7.0", 123)]


def test_time_never_goes_back():
    core = Scheduler()
    core.handle(1, ClockAdvanced(), 500)
    core.handle(2, ClockAdvanced(), 400)
    assert core.now_ms == 500


def test_deadlines_before_an_input_act_first_each_at_its_own_time():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000, 3_000))
    one, two = mesh.submit(), mesh.submit()
    mesh.now_ms += 2_500
    mesh.send(SkewMeasured(job_id=999, skew=0.1))
    demoted = mesh.kinds([JobDemoted])
    assert [(f.job_id, f.at_ms - START_MS, f.queue_index) for f in demoted] == [(one, 1_000, 1)]
    assert mesh.states(one, two) == ["QUEUED", "RUNNING"]
    placed = [f.at_ms - START_MS for f in mesh.kinds([RunPlaced]) if f.job_id == two]
    assert placed == [2_500]


def test_a_completion_in_the_instant_of_a_demotion_comes_first():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    job = mesh.submit()
    mesh.now_ms += 1_000
    done = (TaskExit(task="worker-0", rank=0, exit_code=0),)
    mesh.send(RunExited(node="a", run_id=f"{job}-1", tasks=done))
    assert mesh.kinds([JobDemoted]) == []
    assert (mesh.state(job), mesh.view(job).attained_gpu_ms) == ("SUCCEEDED", 1_000)


def test_a_submission_in_the_instant_of_a_demotion_is_ahead_of_the_demoted_job():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    one = mesh.submit()
    mesh.now_ms += 1_000
    two = mesh.submit()
    assert mesh.states(one, two) == ["QUEUED", "RUNNING"]


def test_demotions_are_told_with_the_service_at_the_crossing():
    mesh = Mesh({"a": 3}, queue_limits_gpu_ms=(100,))
    job = mesh.submit(3)
    mesh.advance(33)
    assert mesh.kinds([JobDemoted]) == []
    mesh.advance(1)
    (fact,) = mesh.kinds([JobDemoted])
    assert (fact.job_id, fact.queue_index, fact.attained_gpu_ms) == (job, 1, 102)


def starved(mesh, **fields):
    low = mesh.submit()
    mesh.advance(1_000)
    high = mesh.submit(**fields)
    return low, high


def test_a_starving_job_is_promoted_when_it_has_waited_long_enough():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,), promote_knob=0.5, promote_floor_ms=0)
    low, high = starved(mesh)
    assert mesh.states(low, high) == ["QUEUED", "RUNNING"]
    mesh.advance(499)
    assert mesh.view(low).queue_index == 1
    mesh.advance(1)
    (fact,) = mesh.kinds([JobPromoted])
    assert (fact.job_id, fact.waited_ms, mesh.view(low).queue_index) == (low, 500, 0)
    assert mesh.states(low, high) == ["QUEUED", "RUNNING"]
    mesh.advance(500)
    assert mesh.states(low, high) == ["RUNNING", "QUEUED"]


def test_a_job_that_is_promised_gpus_is_not_promoted_but_is_when_the_promise_is_gone():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,), promote_knob=1.0, promote_floor_ms=0)
    low = mesh.submit(1)
    mesh.advance(1_000)
    high = mesh.submit(1)
    assert mesh.state(low) == "QUEUED"
    mesh.deaf = {"a"}
    mesh.cancel(high)
    assert mesh.view(low).reason == "WaitingForPreemption"
    mesh.advance(1_500)
    assert (mesh.kinds([JobPromoted]), mesh.view(low).queue_index) == ([], 1)
    top = mesh.submit(1)
    assert mesh.core.explain(top).reason == "WaitingForPreemption"
    mesh.advance(1)
    assert [fact.job_id for fact in mesh.kinds([JobPromoted])] == [low]


def test_a_core_in_use_says_when_it_must_be_woken():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    assert mesh.core.next_deadline_ms() is None
    mesh.submit()
    assert mesh.core.next_deadline_ms() == START_MS + 1_000
