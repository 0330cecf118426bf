"""What a status file tells."""

from broker.schemas.run import StopReason, TaskExit
from launcher.core.run_status import Ended, RunStatus, Started, exit_report, fold, read_facts

LINES = b"""{"fact": "supervising", "pid": 10, "at_ms": 1}
{"fact": "started", "pids": {"worker-0": 11}, "boot_ms": 7, "at_ms": 2}
{"fact": "asked", "reason": "Preempt", "at_ms": 3}
{"fact": "asked", "reason": "Cancel", "at_ms": 3}
{"fact": "news of a later version"}
{"fact": "exited", "task": "worker-0", "rank": 0, "return_code": 143, "stopped_by_us": true}
{"fact": "exited", "task": "worker-1", "rank": 1, "return_code": 75, "stopped_by_us": true}
{"fact": "exited", "task": "worker-2", "rank": 2, "return_code": null, "stopped_by_us": true}
{"fact": "ended", "leftover_pids": [12], "ask_to_exit_ms": 40}
{"fact": "ended", "lost": true}
{"fact": "torn"""


def test_facts_fold_into_the_state_of_a_run():
    status = fold(read_facts(LINES))
    assert status.is_supervised
    assert status.started == Started(pids={"worker-0": 11}, boot_ms=7)
    assert status.asked is StopReason.PREEMPT
    assert status.ended == Ended(leftover_pids=(12,), ask_to_exit_ms=40)
    assert fold(read_facts(b"")) == RunStatus()


def test_a_task_is_over_when_it_or_its_run_is():
    half = fold(read_facts(b"\n".join(LINES.split(b"\n")[:6]) + b"\n"))
    assert half.ended is None
    assert half.is_task_over("worker-0")
    assert not half.is_task_over("worker-1")
    assert fold(read_facts(LINES)).is_task_over("worker-9")


def test_the_report_tells_codes_signals_and_neither():
    status = fold(read_facts(LINES))
    assert status.ended is not None
    report = exit_report("n1", "7-1", status, status.ended)
    assert report.tasks == (
        TaskExit(task="worker-0", rank=0, signal=15, stopped_by_us=True),
        TaskExit(task="worker-1", rank=1, exit_code=75, stopped_by_us=True),
        TaskExit(task="worker-2", rank=2, stopped_by_us=True),
    )
    assert (report.leftover_pids, report.ask_to_exit_ms, report.lost) == ((12,), 40, False)
