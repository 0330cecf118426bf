"""From what every node reported to how a run ended, and whose fault it was.

After a request to stop: exit 75 means saved and stopped because asked, death by our signals means
stopped, exit 0 means that the job finished after all, any other code is the job's own failure.
A job succeeds if its chief exits 0 or, without a chief, all its workers do.
"""

from collections.abc import Iterator

import msgspec

from broker.schemas.run import RunExited, StopReason, TaskExit
from broker.schemas.views import RunOutcome
from scheduler_svc.core.record import Run

SAVED_AND_STOPPED = 75
SIGKILL, SIGTERM = 9, 15
_STOP_SIGNALS = frozenset((SIGKILL, SIGTERM))
_STOPPED_CODES = frozenset((SAVED_AND_STOPPED, 128 + SIGKILL, 128 + SIGTERM))
_PUT_ASIDE = frozenset((StopReason.PREEMPT, StopReason.SHUTDOWN, StopReason.LEASE))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended; code and signal are those of the task that decided."""

    outcome: RunOutcome
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None


def judge(run: Run) -> Verdict:
    """Return the verdict on a run that is over on all nodes."""
    if _succeeded(run):
        return Verdict(outcome=RunOutcome.SUCCEEDED, exit_code=0)
    if run.stop_reason is StopReason.CANCEL:
        return Verdict(outcome=RunOutcome.CANCELLED, message="cancelled")
    if run.stop_reason is StopReason.TIME_LIMIT:
        return Verdict(outcome=RunOutcome.TIMED_OUT, message="time limit reached")
    if run.is_machine_fault or any(report.lost for report in run.exits.values()):
        return Verdict(outcome=RunOutcome.LOST, message=run.abort_message or _lost_message(run))
    asked = {report.asked for report in run.exits.values()} | {run.stop_reason}
    if asked & _PUT_ASIDE and _has_saved(run):
        return Verdict(outcome=RunOutcome.PREEMPTED, message=f"{_why(asked)}: saved and stopped")
    failure = _first_failure(run)
    if failure is not None:
        return _failed(*failure)
    if run.stop_reason is StopReason.ABORT:
        return Verdict(outcome=RunOutcome.ABORTED, message=run.abort_message)
    if asked & _PUT_ASIDE:
        how = "stopped without saving" if run.started else "before it had started"
        return Verdict(outcome=RunOutcome.PREEMPTED, message=f"{_why(asked)}: {how}")
    if not run.started:
        return Verdict(outcome=RunOutcome.ABORTED, message=run.abort_message)
    return Verdict(outcome=RunOutcome.LOST, message="its tasks were stopped from outside")


def has_failed_task(report: RunExited) -> bool:
    """One of this node's tasks ended badly on its own."""
    return any(_is_failure(report, task) for task in report.tasks)


def has_finished_chief(report: RunExited) -> bool:
    """The chief ended well: the whole job is done."""
    return any(task.task == "chief-0" and task.exit_code == 0 for task in report.tasks)


def _succeeded(run: Run) -> bool:
    deciding = [task.name for task in run.tasks if task.role == "chief"] or [
        task.name for task in run.tasks
    ]
    codes = {task.task: task.exit_code for _, task in _task_exits(run)}
    return all(codes.get(name) == 0 for name in deciding)


def _task_exits(run: Run) -> Iterator[tuple[RunExited, TaskExit]]:
    for node in run.nodes:
        report = run.exits.get(node)
        for task in report.tasks if report is not None else ():
            assert report is not None
            yield report, task


def _is_failure(report: RunExited, task: TaskExit) -> bool:
    if task.exit_code == 0:
        return False
    if report.asked is not None:
        return not (task.signal in _STOP_SIGNALS or task.exit_code in _STOPPED_CODES)
    return not task.stopped_by_us


def _first_failure(run: Run) -> tuple[RunExited, TaskExit] | None:
    """The failure that came of itself, before those that followed a request to stop."""
    failures = [(r, t) for r, t in _task_exits(run) if _is_failure(r, t)]
    return min(failures, key=lambda pair: pair[0].asked is not None, default=None)


def _has_saved(run: Run) -> bool:
    """The task that speaks for the gang (the chief, or else worker 0) saved and stopped."""
    speaker = next((task for task in run.tasks if task.role == "chief"), run.tasks[0])
    return any(
        task.task == speaker.name and task.exit_code == SAVED_AND_STOPPED
        for _, task in _task_exits(run)
    )


def _failed(report: RunExited, task: TaskExit) -> Verdict:
    if task.signal is not None:
        what = f"killed by signal {task.signal}"
    else:
        what = f"exit {task.exit_code}"
        if task.exit_code == SAVED_AND_STOPPED:
            what += " (saved and stopped) although nobody asked"
    return Verdict(
        outcome=RunOutcome.FAILED,
        message=f"{task.task} (rank {task.rank}) on {report.node}: {what}",
        exit_code=task.exit_code,
        signal=task.signal,
    )


def _lost_message(run: Run) -> str:
    lost = sorted(node for node, report in run.exits.items() if report.lost)
    return f"lost on {', '.join(lost)}" if lost else "its machine failed"


def _why(asked: set[StopReason | None]) -> str:
    return "preempted" if StopReason.PREEMPT in asked else "its launcher stopped it"
