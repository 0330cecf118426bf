"""The life of a run: gangs start whole or not at all, and stop whole."""

import pytest

from broker.schemas.command import PreemptRun, PrepareRun, StartRun, StopRun
from broker.schemas.fact import RunCheckpointSaved, RunEnded, RunRestored, RunStopping
from broker.schemas.job import JobCancelRequested, JobHoldRequested
from broker.schemas.node import NodeLost
from broker.schemas.run import (
    InventoryReported,
    PrepareRefusal,
    RunCheckpointed,
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunReport,
    RunResumed,
    RunStarted,
    StopReason,
    TaskExit,
)
from broker.schemas.views import RunOutcome
from tests.unit.scheduler_svc.mesh import Mesh

TWO = {"a": 1, "b": 1}


def gang_on_two(*, deaf=(), **fields):
    mesh = Mesh(TWO)
    mesh.deaf = set(deaf)
    return mesh, mesh.submit(2, **fields)


def commands(mesh, kind):
    return [(c.node, c.run_id) for c in mesh.kinds([kind])]


def outcomes(mesh):
    return [(fact.outcome, fact.message) for fact in mesh.kinds([RunEnded])]


def exit_report(run_id, node, *exits, **fields):
    tasks = tuple(
        TaskExit(task=f"worker-{rank}", rank=rank, exit_code=code) for rank, code in exits
    )
    return RunExited(node=node, run_id=run_id, tasks=tasks, **fields)


def test_a_gang_on_one_node_is_prepared_and_started_in_one_step():
    mesh = Mesh({"a": 2})
    job = mesh.submit(2)
    (prepare,) = mesh.kinds([PrepareRun])
    assert (prepare.run_id, prepare.is_whole_gang, len(prepare.tasks)) == (f"{job}-1", True, 2)
    assert commands(mesh, StartRun) == []
    assert mesh.state(job) == "RUNNING"


def test_a_gang_starts_only_when_every_node_is_prepared_with_all_addresses():
    mesh, job = gang_on_two(deaf="b")
    assert commands(mesh, PrepareRun) == [("a", f"{job}-1"), ("b", f"{job}-1")]
    assert (commands(mesh, StartRun), mesh.state(job)) == ([], "STARTING")
    mesh.listen("b")
    (start, _) = mesh.kinds([StartRun])
    assert start.cluster == {"worker": ("10.0.0.a:20000", "10.0.0.b:20001")}
    assert mesh.state(job) == "RUNNING"


def test_service_counts_only_when_the_whole_gang_is_up():
    mesh, job = gang_on_two(deaf="ab")
    for node in "ab":
        mesh.send(RunPrepared(node=node, run_id=f"{job}-1", ports={}))
    mesh.send(RunStarted(node="a", run_id=f"{job}-1", pids={}))
    mesh.send(RunStarted(node="a", run_id=f"{job}-1", pids={}))
    mesh.advance(50)
    assert (mesh.state(job), mesh.core.explain(job).attained_gpu_ms) == ("STARTING", 0)
    mesh.send(RunStarted(node="b", run_id=f"{job}-1", pids={}))
    mesh.advance(50)
    assert mesh.core.explain(job, mesh.now_ms).attained_gpu_ms == 100
    mesh.send(RunPrepared(node="a", run_id=f"{job}-1", ports={}))
    mesh.send(RunStarted(node="b", run_id=f"{job}-1", pids={}))
    assert mesh.state(job) == "RUNNING"


def test_one_refusal_aborts_the_whole_gang_which_is_tried_again_after_a_pause():
    mesh, job = gang_on_two(deaf="b")
    refusal = RunPrepareRefused(
        node="b", run_id=f"{job}-1", reason=PrepareRefusal.NO_PORTS, detail="all in use"
    )
    mesh.unheard.clear()
    mesh.send(refusal)
    assert outcomes(mesh) == [(RunOutcome.ABORTED, "b: NoPorts all in use")]
    assert (mesh.state(job), mesh.view(job).reason) == ("QUEUED", "Backoff")
    assert mesh.core.explain(job).message == "is tried again after a pause"
    mesh.send(refusal)
    mesh.listen("b")
    mesh.advance(999)
    assert mesh.state(job) == "QUEUED"
    mesh.advance(1)
    assert mesh.state(job) == "RUNNING"


def test_pauses_after_refusals_double_up_to_a_bound_and_start_anew_after_a_start():
    mesh = Mesh({"a": 1})
    mesh.deaf.add("a")
    job = mesh.submit()
    pauses = []
    for attempt in range(1, 9):
        run_id = f"{job}-{attempt}"
        refusal = RunPrepareRefused(node="a", run_id=run_id, reason=PrepareRefusal.NO_SPACE)
        mesh.send(refusal)
        pauses.append(mesh.core.next_deadline_ms() - mesh.now_ms)
        mesh.advance(pauses[-1])
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000, 32_000]
    mesh.listen("a")
    assert mesh.state(job) == "RUNNING"
    mesh.deaf.add("a")
    mesh.exit(f"{job}-9", "a", code=75, asked=StopReason.SHUTDOWN)
    mesh.send(RunPrepareRefused(node="a", run_id=f"{job}-10", reason=PrepareRefusal.NO_SPACE))
    assert mesh.core.next_deadline_ms() - mesh.now_ms == 1_000


def test_a_refusal_twice_or_after_the_run_is_over_there_changes_nothing():
    mesh, job = gang_on_two(deaf="ab")
    mesh.send(RunExited(node="a", run_id=f"{job}-1", asked=StopReason.SHUTDOWN))
    count = len(mesh.outputs)
    mesh.send(RunPrepareRefused(node="a", run_id=f"{job}-1", reason=PrepareRefusal.NOT_PREPARED))
    mesh.send(RunPrepareRefused(node="a", run_id="99-1", reason=PrepareRefusal.NO_PORTS))
    assert len(mesh.outputs) == count


def test_one_deaf_node_costs_the_others_no_more_than_the_launch_limit():
    mesh, job = gang_on_two(deaf="b")
    mesh.advance(60_000 - 1)
    assert mesh.state(job) == "STARTING"
    mesh.advance(1)
    assert outcomes(mesh) == [(RunOutcome.ABORTED, "not up within 60000 ms; no answer from b")]
    assert mesh.node("a").owners == mesh.node("b").owners == {}
    assert mesh.state(mesh.submit(1)) == "RUNNING"


def test_a_prepared_node_that_hangs_keeps_its_gpus_until_it_reports():
    mesh, job = gang_on_two(deaf="b")
    mesh.send(RunPrepared(node="b", run_id=f"{job}-1", ports={}))
    mesh.advance(60_000)
    assert (mesh.state(job), outcomes(mesh)) == ("STOPPING", [])
    assert mesh.node("b").owners == {"b-gpu0": f"{job}-1"}
    mesh.send(RunExited(node="b", run_id=f"{job}-1", asked=StopReason.ABORT))
    assert outcomes(mesh) == [
        (RunOutcome.ABORTED, "not up within 60000 ms; no answer from started tasks")
    ]


@pytest.mark.parametrize("manner", [{"code": 75}, {"code": None, "signal": 15}])
def test_a_preempted_job_waits_again_with_no_failure_counted(manner):
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    low = mesh.submit()
    mesh.advance(1_000)
    mesh.deaf.add("a")
    mesh.submit()
    (preempt,) = mesh.kinds([PreemptRun])
    assert (preempt.run_id, preempt.grace_ms, mesh.state(low)) == (f"{low}-1", 60_000, "STOPPING")
    mesh.exit(f"{low}-1", "a", asked=StopReason.PREEMPT, **manner)
    view = mesh.view(low)
    assert (view.state, view.preemptions, view.failures) == ("QUEUED", 1, 0)
    assert view.runs[0].outcome is RunOutcome.PREEMPTED


def test_preempted_before_it_had_started_it_waits_without_a_pause():
    mesh = Mesh({"a": 1})
    mesh.deaf.add("a")
    job = mesh.submit()
    mesh.send(JobHoldRequested(job_id=job))
    mesh.send(RunExited(node="a", run_id=f"{job}-1", asked=StopReason.PREEMPT))
    assert outcomes(mesh) == [(RunOutcome.PREEMPTED, "preempted: before it had started")]
    assert (mesh.state(job), mesh.view(job).preemptions) == ("HELD", 1)


def test_one_failed_rank_stops_the_gang_and_names_itself():
    mesh = Mesh({"a": 2, "b": 2})
    job = mesh.submit(4, grace="60s")
    mesh.deaf = {"a", "b"}
    failed = exit_report(f"{job}-1", "b", (2, 1))
    mesh.send(failed)
    (stop,) = mesh.kinds([StopRun])
    assert (stop.node, stop.reason, stop.grace_ms) == ("a", StopReason.PEER_FAILED, 10_000)
    assert mesh.state(job) == "STOPPING"
    mesh.exit(f"{job}-1", "a", code=None, signal=9, asked=StopReason.PEER_FAILED)
    assert outcomes(mesh) == [(RunOutcome.FAILED, "worker-2 (rank 2) on b: exit 1")]
    assert (mesh.state(job), mesh.view(job).exit_code) == ("FAILED", 1)


def test_a_gang_whose_job_will_fail_is_promised_nothing_while_it_stops():
    mesh = Mesh({"a": 1, "b": 1})
    job = mesh.submit(2)
    waiting = mesh.submit(1)
    mesh.deaf.add("b")
    mesh.send(exit_report(f"{job}-1", "a", (0, 1)))
    assert mesh.core.explain(job).message == f"run {job}-1 is stopping: PeerFailed"
    assert mesh.view(waiting).reason == "WaitingForPreemption"


def test_a_chief_that_ends_well_ends_the_job_on_all_nodes():
    mesh = Mesh(TWO)
    job = mesh.submit(2, ps=1)
    mesh.deaf.add("b")
    chief = TaskExit(task="chief-0", rank=2, exit_code=0)
    mesh.send(RunExited(node="a", run_id=f"{job}-1", tasks=(chief,)))
    (stop,) = mesh.kinds([StopRun])
    assert (stop.node, stop.reason) == ("b", StopReason.PEER_FINISHED)
    mesh.exit(f"{job}-1", "b", code=None, signal=15, asked=StopReason.PEER_FINISHED)
    assert mesh.state(job) == "SUCCEEDED"


def test_workers_without_a_chief_may_end_one_after_the_other():
    mesh, job = gang_on_two()
    mesh.send(exit_report(f"{job}-1", "a", (0, 0)))
    assert mesh.state(job) == "RUNNING"
    mesh.send(exit_report(f"{job}-1", "b", (1, 0)))
    assert mesh.state(job) == "SUCCEEDED"


def test_a_launcher_that_stops_its_tasks_puts_the_whole_gang_aside():
    mesh, job = gang_on_two()
    mesh.deaf.add("b")
    mesh.exit(f"{job}-1", "a", code=75, asked=StopReason.SHUTDOWN)
    assert commands(mesh, PreemptRun) == [("b", f"{job}-1")]
    mesh.exit(f"{job}-1", "b", code=75, asked=StopReason.PREEMPT)
    assert outcomes(mesh) == [(RunOutcome.PREEMPTED, "preempted: saved and stopped")]


def test_tasks_of_a_run_that_was_given_up_or_never_was_are_stopped():
    mesh = Mesh(TWO)
    job = mesh.submit(1)
    for run_id in (f"{job}-9", "77-1", "nonsense", "9" * 5_000 + "-1"):
        mesh.send(RunStarted(node="a", run_id=run_id, pids={}))
    stops = [(s.node, s.run_id, s.reason) for s in mesh.kinds([StopRun])]
    assert stops == [
        ("a", f"{job}-9", StopReason.UNKNOWN_RUN),
        ("a", "77-1", StopReason.UNKNOWN_RUN),
    ]
    assert mesh.state(job) == "RUNNING"


def test_reports_twice_late_or_of_strangers_are_dropped():
    mesh = Mesh(TWO)
    job = mesh.submit(1)
    before = len(mesh.outputs)
    for run_id in (f"{job}-9", "77-1", "nonsense", "9" * 5_000 + "-1"):
        mesh.send(RunExited(node="a", run_id=run_id))
        mesh.send(RunCheckpointed(node="a", run_id=run_id, step=1))
        mesh.send(RunResumed(node="a", run_id=run_id, step=1))
    mesh.send(RunExited(node="b", run_id=f"{job}-1"))
    mesh.send(RunExited(node="nowhere", run_id=f"{job}-1"))
    assert (len(mesh.outputs), mesh.state(job)) == (before, "RUNNING")
    mesh.finish(job)
    mesh.send(exit_report(f"{job}-1", "a", (0, 1)))
    assert mesh.state(job) == "SUCCEEDED"


def test_an_exit_report_twice_from_one_node_counts_once():
    mesh, job = gang_on_two()
    mesh.send(exit_report(f"{job}-1", "a", (0, 0)))
    mesh.send(exit_report(f"{job}-1", "a", (0, 1)))
    mesh.send(exit_report(f"{job}-1", "b", (1, 0)))
    assert mesh.state(job) == "SUCCEEDED"


def test_saves_and_resumes_are_told_and_kept_with_the_attempt():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    run_id = f"{job}-1"
    mesh.send(RunResumed(node="a", run_id=run_id, step=5, restore_ms=20, first_step_ms=90))
    mesh.send(RunCheckpointed(node="a", run_id=run_id, step=8, save_ms=30))
    assert mesh.view(job).runs[0].saved_at_ms is None
    mesh.send(RunCheckpointed(node="a", run_id=run_id, step=9, save_ms=40, asked=True))
    attempt = mesh.view(job).runs[0]
    assert (attempt.resumed_step, attempt.restore_ms, attempt.first_step_ms) == (5, 20, 90)
    assert (attempt.saved_step, attempt.save_ms, attempt.saved_at_ms) == (9, 40, mesh.now_ms)
    assert [fact.asked for fact in mesh.kinds([RunCheckpointSaved])] == [False, True]
    assert [fact.step for fact in mesh.kinds([RunRestored])] == [5]


def test_a_first_step_before_the_whole_gang_is_up_costs_nothing_yet():
    mesh, job = gang_on_two()
    mesh.deaf.add("b")
    for node in "ab":
        mesh.exit(f"{job}-1", node, code=75, asked=StopReason.SHUTDOWN)
    mesh.send(RunResumed(node="a", run_id=f"{job}-2", step=4))
    assert (mesh.state(job), mesh.view(job).runs[1].resumed_step) == ("STARTING", 4)


def test_the_slowest_node_says_how_long_a_stop_took():
    mesh, job = gang_on_two()
    mesh.deaf = {"a", "b"}
    mesh.send(JobCancelRequested(job_id=job))
    for node, took_ms in (("a", 70), ("b", 30)):
        mesh.send(
            RunExited(node=node, run_id=f"{job}-1", asked=StopReason.CANCEL, ask_to_exit_ms=took_ms)
        )
    assert mesh.view(job).runs[0].stop_ms == 70


def test_a_time_limit_counts_running_time_over_all_attempts_and_nothing_else():
    mesh = Mesh({"a": 1}, queue_limits_gpu_ms=(1_000,))
    job = mesh.submit(time_limit="3s")
    mesh.advance(1_000)
    other = mesh.submit()
    assert mesh.state(job) == "QUEUED"
    mesh.advance(500)
    mesh.finish(other)
    assert mesh.state(job) == "RUNNING"
    mesh.advance(1_999)
    assert mesh.state(job) == "RUNNING"
    mesh.advance(1)
    view = mesh.view(job)
    assert (view.state, view.message) == ("TIMED_OUT", "time limit reached")
    assert [stop.reason for stop in mesh.kinds([StopRun])] == [StopReason.TIME_LIMIT]


def test_a_node_lost_in_any_phase_costs_the_job_a_restart_and_no_failure():
    for phase in ("preparing", "running", "stopping"):
        mesh = Mesh(TWO)
        if phase == "preparing":
            mesh.deaf = {"a", "b"}
        job = mesh.submit(1)
        if phase == "stopping":
            mesh.deaf = {"a", "b"}
            mesh.send(JobHoldRequested(job_id=job))
        mesh.send(NodeLost(node="a", silent_ms=1))
        view = mesh.view(job)
        assert (view.node_losses, view.failures, view.run_id) == (1, 0, None), phase
        assert view.runs[0].message == "node a lost"


def test_a_gang_loses_all_its_nodes_when_it_loses_one():
    mesh, job = gang_on_two()
    mesh.deaf.add("b")
    mesh.send(NodeLost(node="a", silent_ms=1))
    assert [(s.node, s.reason) for s in mesh.kinds([StopRun])] == [("b", StopReason.PEER_FAILED)]
    mesh.exit(f"{job}-1", "b", code=None, signal=15, asked=StopReason.PEER_FAILED)
    assert outcomes(mesh) == [(RunOutcome.LOST, "node a lost")]
    assert mesh.view(job).reason in {"NodesCordoned", "Backoff"}


def test_a_preemption_that_a_lost_node_overtakes_promises_the_job_nothing_more():
    mesh = Mesh({"a": 1, "b": 1, "c": 1}, queue_limits_gpu_ms=(1_000,))
    low = mesh.submit(2)
    mesh.advance(500)
    mesh.deaf = {"a", "b", "c"}
    mesh.submit(2)
    assert [fact.job_id for fact in mesh.kinds([RunStopping])] == [low]
    mesh.send(NodeLost(node="a", silent_ms=1))
    assert mesh.core.explain(low).reason == ""


def test_a_launcher_without_a_run_that_it_had_taken_has_lost_it():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.send(
        InventoryReported(
            node="a", boot_id="boot-1", runs=(RunReport(run_id=f"{job}-1", phase="running"),)
        )
    )
    assert mesh.state(job) == "RUNNING"
    mesh.send(InventoryReported(node="a", boot_id="boot-1"))
    assert outcomes(mesh) == [(RunOutcome.LOST, "unknown to the launcher of a")]


def test_a_launcher_that_has_not_answered_yet_may_not_have_heard_of_the_run():
    mesh = Mesh({"a": 1})
    mesh.deaf.add("a")
    job = mesh.submit()
    mesh.send(InventoryReported(node="a", boot_id="boot-1"))
    assert mesh.state(job) == "STARTING"
    mesh.listen("a")
    assert mesh.state(job) == "RUNNING"


def test_runs_that_nobody_knows_are_stopped():
    mesh = Mesh({"a": 1})
    mesh.send(
        InventoryReported(
            node="a", boot_id="boot-1", runs=(RunReport(run_id="99-1", phase="running"),)
        )
    )
    (stop,) = mesh.kinds([StopRun])
    assert (stop.run_id, stop.reason) == ("99-1", StopReason.UNKNOWN_RUN)


def test_only_the_newest_attempts_are_shown():
    mesh = Mesh({"a": 1}, restart_backoff_ms=1)
    job = mesh.submit()
    for attempt in range(1, 25):
        mesh.exit(f"{job}-{attempt}", "a", code=75, asked=StopReason.SHUTDOWN)
    runs = mesh.view(job).runs
    assert (len(runs), runs[0].run_id, runs[-1].run_id) == (20, f"{job}-6", f"{job}-25")
