"""How a run ended and whose fault it was, from what its nodes report."""

import pytest

from broker.schemas.command import TaskPlacement
from broker.schemas.run import RunExited, StopReason, TaskExit
from broker.schemas.views import RunOutcome
from scheduler_svc.core.record import Run
from scheduler_svc.core.verdict import has_failed_task, has_finished_chief, judge

PREEMPT, SHUTDOWN = StopReason.PREEMPT, StopReason.SHUTDOWN


def ended(*exits, asked=None, stop_reason=None, started=True, role="worker", **fields):
    """A run with one task a node; an exit is a code, ``-signal``, or None for no report of it."""
    asked = asked if isinstance(asked, list) else [asked] * len(exits)
    tasks = tuple(
        TaskPlacement(role=role if i == 0 else "worker", index=i, rank=i, node=f"n{i}")
        for i in range(len(exits))
    )
    reports = {}
    for i, (task, code) in enumerate(zip(tasks, exits, strict=True)):
        task_exit = TaskExit(
            task=task.name,
            rank=i,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
        )
        reports[task.node] = RunExited(
            node=task.node,
            run_id="1-1",
            tasks=() if code is None else (task_exit,),
            asked=asked[i],
        )
    return Run(
        run_id="1-1",
        tasks=tasks,
        exits=reports,
        stop_reason=stop_reason,
        started=[task.node for task in tasks] if started else [],
        **fields,
    )


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (ended(0, 0), "SUCCEEDED"),
        (ended(0, 1), "FAILED"),
        (ended(0, 75), "FAILED"),
        (ended(-9), "FAILED"),
        (ended(75, asked=PREEMPT, stop_reason=PREEMPT), "PREEMPTED"),
        (ended(-15, asked=PREEMPT, stop_reason=PREEMPT), "PREEMPTED"),
        (ended(-9, asked=PREEMPT, stop_reason=PREEMPT), "PREEMPTED"),
        (ended(143, asked=PREEMPT, stop_reason=PREEMPT), "PREEMPTED"),
        (ended(0, asked=PREEMPT, stop_reason=PREEMPT), "SUCCEEDED"),
        (ended(1, asked=PREEMPT, stop_reason=PREEMPT), "FAILED"),
        (ended(-11, asked=PREEMPT, stop_reason=PREEMPT), "FAILED"),
        (ended(75, 1, asked=PREEMPT, stop_reason=PREEMPT), "PREEMPTED"),
        (ended(1, 75, asked=PREEMPT, stop_reason=PREEMPT), "FAILED"),
        (ended(0, 75, asked=PREEMPT, stop_reason=PREEMPT), "PREEMPTED"),
        (ended(None, asked=PREEMPT, stop_reason=PREEMPT, started=False), "PREEMPTED"),
        (ended(75, asked=SHUTDOWN), "PREEMPTED"),
        (ended(-15, asked=StopReason.LEASE), "PREEMPTED"),
        (ended(-15, asked=StopReason.CANCEL, stop_reason=StopReason.CANCEL), "CANCELLED"),
        (ended(1, asked=StopReason.CANCEL, stop_reason=StopReason.CANCEL), "CANCELLED"),
        (ended(0, asked=StopReason.CANCEL, stop_reason=StopReason.CANCEL), "SUCCEEDED"),
        (ended(-9, asked=StopReason.TIME_LIMIT, stop_reason=StopReason.TIME_LIMIT), "TIMED_OUT"),
        (ended(None, stop_reason=StopReason.ABORT, started=False), "ABORTED"),
        (ended(-15, asked=StopReason.ABORT, stop_reason=StopReason.ABORT), "ABORTED"),
        (ended(None, started=False), "ABORTED"),
        (ended(75, stop_reason=PREEMPT, asked=PREEMPT, is_machine_fault=True), "LOST"),
        (ended(-15, asked=StopReason.UNKNOWN_RUN), "LOST"),
    ],
)
def test_the_outcome_follows_from_codes_and_from_who_asked(run, outcome):
    assert judge(run).outcome is RunOutcome[outcome]


def test_without_a_chief_all_workers_must_end_well():
    assert judge(ended(0, None, started=True)).outcome is RunOutcome.LOST


def test_the_chief_alone_decides_about_success():
    run = ended(0, -9, role="chief", stop_reason=StopReason.PEER_FINISHED, asked=[None, PREEMPT])
    assert judge(run).outcome is RunOutcome.SUCCEEDED


def test_the_chief_speaks_for_the_gang_when_it_saved():
    run = ended(75, 1, role="chief", stop_reason=PREEMPT, asked=PREEMPT)
    assert judge(run).outcome is RunOutcome.PREEMPTED


def test_the_first_failure_is_the_one_nobody_asked_for():
    run = ended(1, 3, stop_reason=StopReason.PEER_FAILED, asked=[StopReason.PEER_FAILED, None])
    verdict = judge(run)
    assert verdict.message == "worker-1 (rank 1) on n1: exit 3"
    assert (verdict.exit_code, verdict.signal) == (3, None)


def test_messages_say_what_happened():
    assert judge(ended(-11)).message == "worker-0 (rank 0) on n0: killed by signal 11"
    assert judge(ended(75)).message.endswith("exit 75 (saved and stopped) although nobody asked")
    saved = ended(75, asked=PREEMPT, stop_reason=PREEMPT)
    assert judge(saved).message == "preempted: saved and stopped"
    assert judge(ended(-9, asked=SHUTDOWN)).message == (
        "its launcher stopped it: stopped without saving"
    )
    early = ended(None, asked=PREEMPT, stop_reason=PREEMPT, started=False)
    assert judge(early).message == "preempted: before it had started"


def test_a_loss_names_the_nodes_unless_the_cause_is_known():
    run = ended(0, None)
    run.exits["n1"] = RunExited(node="n1", run_id="1-1", lost=True)
    assert judge(run).message == "lost on n1"
    run.abort_message = "node n1 lost"
    assert judge(run).message == "node n1 lost"
    assert judge(ended(1, is_machine_fault=True)).message == "its machine failed"


def test_a_task_stopped_because_another_ended_is_no_failure():
    task = TaskExit(task="worker-1", rank=1, signal=15, stopped_by_us=True)
    assert not has_failed_task(RunExited(node="n", run_id="1-1", tasks=(task,)))
    failed = TaskExit(task="worker-1", rank=1, signal=15)
    assert has_failed_task(RunExited(node="n", run_id="1-1", tasks=(failed,)))


def test_only_a_chief_that_exits_0_has_finished():
    def report(name, code):
        task = TaskExit(task=name, rank=0, exit_code=code)
        return RunExited(node="n", run_id="1-1", tasks=(task,))

    assert has_finished_chief(report("chief-0", 0))
    assert not has_finished_chief(report("chief-0", 1))
    assert not has_finished_chief(report("worker-0", 0))
