"""The book of runs: phases, what commands mean in them, and what is remembered."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.schemas.run import (
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunReport,
    RunStarted,
    StopReason,
)
from launcher.core import run_state
from launcher.core.run_state import (
    TRANSITIONS,
    Action,
    Book,
    BootSeen,
    EpochSeen,
    Phase,
    ReportDelivered,
    ReportMade,
    RunKept,
    StartIntended,
    Step,
    StopIntended,
    report_kind,
)
from tests.unit.launcher.samples import NODE, preempt, prepare, start, stop

KEPT = RunKept(prepare=prepare(), ports={"worker-0": 5_000})
START = StartIntended(run_id="7-1", cluster={"worker": ("h:1",)})
UP = ReportMade(report=RunStarted(node=NODE, run_id="7-1", pids={"worker-0": 1}))
STOP = StopIntended(run_id="7-1", reason=StopReason.PREEMPT, grace_ms=9)
EXIT = ReportMade(report=RunExited(node=NODE, run_id="7-1"))
DELIVERED = ReportDelivered(run_id="7-1")
PATHS = {
    Phase.PREPARED: [KEPT],
    Phase.STARTING: [KEPT, START],
    Phase.RUNNING: [KEPT, START, UP],
    Phase.STOPPING: [KEPT, START, UP, STOP],
    Phase.ENDED: [KEPT, START, UP, STOP, EXIT],
}


def book_of(*records) -> Book:
    book = Book()
    for record in records:
        book.apply(record)
    return book


@pytest.mark.parametrize(
    ("phase", "actions"),
    [
        (None, ("prepare", "refuse_unprepared", "report_lost", "report_lost")),
        (Phase.PREPARED, ("nothing", "start", "end_unstarted", "end_unstarted")),
        (Phase.STARTING, ("nothing", "nothing", "stop", "stop")),
        (Phase.RUNNING, ("nothing", "nothing", "stop", "stop")),
        (Phase.STOPPING, ("nothing", "nothing", "stop", "stop")),
        (Phase.ENDED, ("nothing", "nothing", "nothing", "nothing")),
    ],
)
def test_each_command_means_one_thing_in_each_phase(phase, actions):
    book = book_of(*PATHS.get(phase, []))
    commands = (prepare(), start(), preempt(), stop())
    assert tuple(book.action_for(command) for command in commands) == actions


def test_every_phase_can_be_reached_and_left_but_the_last():
    for phase, records in PATHS.items():
        run = book_of(*records).runs.get("7-1")
        assert (run.phase if run else Phase.ENDED) is phase
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - {Phase.ENDED}
    assert all((phase, Step.EXIT) in TRANSITIONS for phase in set(Phase) - {Phase.ENDED})


def test_reports_wait_in_order_until_they_are_delivered():
    book = book_of(KEPT, START, UP, EXIT)
    kinds = [report_kind(report) for report in book.undelivered["7-1"]]
    assert kinds == ["prepared", "started", "exited"]
    book.apply(DELIVERED)
    assert [report_kind(report) for report in book.undelivered["7-1"]] == ["started", "exited"]
    book.apply(DELIVERED)
    book.apply(DELIVERED)
    assert book.undelivered == {}
    book.apply(DELIVERED)
    assert book.undelivered == {}


def test_a_refused_run_is_over():
    refused = RunPrepareRefused(node=NODE, run_id="7-1", reason="GpuBusy")
    book = book_of(ReportMade(report=refused))
    assert book.action_for(stop()) is Action.NOTHING
    assert book.action_for(prepare()) is Action.NOTHING
    assert report_kind(refused) == "prepare_refused"


def test_of_two_requests_the_newest_reason_and_the_shorter_grace_are_kept():
    again = StopIntended(run_id="7-1", reason=StopReason.CANCEL, grace_ms=100)
    run = book_of(KEPT, START, STOP, again).runs["7-1"]
    assert (run.asked, run.grace_ms) == (StopReason.CANCEL, 9)


def test_the_start_of_a_stopping_run_does_not_make_it_run():
    assert book_of(KEPT, START, STOP, UP).runs["7-1"].phase is Phase.STOPPING


def test_records_about_unknown_runs_change_nothing_but_what_is_to_be_told():
    book = book_of(START, STOP, UP)
    assert book.runs == {}
    assert book.undelivered == {"7-1": [UP.report]}


@pytest.mark.parametrize(
    ("epoch", "seq", "is_stale"), [(5, 9, True), (5, 7, False), (8, 9, False), (9, 12, False)]
)
def test_a_command_is_stale_if_its_leader_sent_it_after_the_newer_one_took_over(
    epoch, seq, is_stale
):
    book = book_of(EpochSeen(epoch=8), EpochSeen(epoch=3))
    assert book.epoch == 8
    assert book.is_stale(epoch, seq) is is_stale


def test_the_inventory_lists_what_is_here_and_exits_not_yet_told():
    other = RunKept(prepare=prepare("8-1"), ports={})
    assert book_of(KEPT, START, other).inventory() == (
        RunReport(run_id="7-1", phase="running"),
        RunReport(run_id="8-1", phase="prepared"),
    )
    ended = book_of(KEPT, EXIT)
    assert ended.inventory() == (RunReport(run_id="7-1", phase="stopping"),)
    ended.apply(DELIVERED)
    ended.apply(DELIVERED)
    assert ended.inventory() == ()


def test_the_oldest_ended_runs_are_forgotten(monkeypatch):
    monkeypatch.setattr(run_state, "REMEMBERED_RUNS", 2)
    exits = [ReportMade(report=RunExited(node=NODE, run_id=f"{i}-1")) for i in (1, 2, 3)]
    assert list(book_of(*exits).over) == ["2-1", "3-1"]


RECORDS = st.sampled_from(
    [KEPT, START, UP, STOP, EXIT, DELIVERED, EpochSeen(epoch=3), BootSeen(boot_id="b")]
)


@given(st.lists(RECORDS), st.lists(RECORDS))
def test_a_book_read_back_goes_on_as_the_one_written(before, after):
    book = book_of(*before)
    copy = msgspec.json.decode(msgspec.json.encode(book), type=Book)
    for record in after:
        book.apply(record)
        copy.apply(record)
    assert copy == book


@given(st.lists(RECORDS))
def test_a_run_is_never_both_here_and_over_and_exits_once(records):
    book = Book()
    for record in records:
        if record is KEPT and book.action_for(KEPT.prepare) is not Action.PREPARE:
            continue
        if record is EXIT and "7-1" not in book.runs:
            continue
        book.apply(record)
        assert not set(book.runs) & set(book.over)
        exits = [r for r in book.undelivered.get("7-1", []) if isinstance(r, RunExited)]
        assert len(exits) <= 1


def test_a_prepared_run_tells_its_ports():
    (report,) = book_of(KEPT).undelivered["7-1"]
    assert report == RunPrepared(node=NODE, run_id="7-1", ports={"worker-0": 5_000})
