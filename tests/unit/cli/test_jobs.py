"""`ls`, `show`, `why`, and how jobs are named."""

import json
import re

import pytest

from broker.clock import SystemClock
from broker.schemas.api import ApiError
from broker.schemas.fact import JobDemoted, JobEnded, JobQueued, RunStopping
from broker.schemas.job import Problem
from broker.schemas.node import RunProgress, Telemetry
from broker.schemas.views import Attempt, Explanation, JobState, RunOutcome
from tests.unit.cli.support import call, job, placed


def test_ls_shows_what_has_not_ended(cluster, capsys):
    cluster.put_job(job(7, state=JobState.RUNNING, queue_index=1, attained_gpu_ms=90_000))
    cluster.put_job(job(8, name="done", state=JobState.SUCCEEDED))
    assert call("ls") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert " ".join(header.split()) == "ID NAME USER STATE REASON QUEUE GPUS ATTAINED STEP AGE"
    assert " ".join(row.split()) == "7 digits ada RUNNING - Q2 1 90 GPU-s - 1m00s"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--all"], ["7", "8", "9"]),
        (["--state", "failed"], ["9"]),
        (["--state", "RUNNING,FAILED"], ["7", "9"]),
        (["--user", "eve", "--all"], ["8"]),
        (["--user", "eve"], []),
    ],
)
def test_ls_filters(cluster, capsys, arguments, shown):
    cluster.put_job(job(7))
    cluster.put_job(job(8, user="eve", state=JobState.SUCCEEDED))
    cluster.put_job(job(9, state=JobState.FAILED))
    assert call("ls", *arguments, "-o", "name") == 0
    assert capsys.readouterr().out.split() == shown


def test_ls_says_when_there_is_nothing(cluster, capsys):
    cluster.put_job(job(8, state=JobState.SUCCEEDED))
    assert call("ls") == 0
    assert "1 have ended" in capsys.readouterr().err
    assert call("ls", "--state", "NOPE") == 2
    assert "states: QUEUED" in capsys.readouterr().err


def test_json_has_utc_times_and_everything(cluster, capsys):
    message = "m" * 500
    cluster.put_job(job(7, submitted_at_ms=1_700_000_000_123, message=message))
    assert call("ls", "-o", "json") == 0
    [document] = json.loads(capsys.readouterr().out)
    assert document["submitted_at"] == "2023-11-14T22:13:20.123Z"
    assert document["message"] == message
    assert document["ended_at"] is None


def test_tables_in_a_pipe_cut_nothing(cluster, capsys):
    cluster.put_job(job(7, message="m" * 500, labels={"team": "vision"}))
    assert call("ls", "-o", "wide") == 0
    out = capsys.readouterr().out
    assert "m" * 500 in out
    assert "team=vision" in out


def test_a_clock_that_is_behind_gives_no_negative_age(cluster, capsys):
    later_ms = SystemClock().now_ms() + 3_600_000
    cluster.put_job(job(7, submitted_at_ms=later_ms, as_of_ms=later_ms, counting=True))
    assert call("ls") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "0ms"
    assert call("show", 7) == 0
    assert not re.search(r"-\d+(ms|s|m)\b", capsys.readouterr().out)


def test_progress_of_the_present_run_is_shown(cluster, capsys):
    cluster.put_job(job(7, run_id="7-2"))
    for node, step, at_ms in (("node-0", 12, 2), ("node-1", 11, 1)):
        runs = (RunProgress(run_id="7-2", step=step, total_steps=100, at_ms=at_ms),)
        cluster.put_telemetry(Telemetry(node=node, at_ms=at_ms, runs=runs))
    assert call("ls") == 0
    assert "12/100" in capsys.readouterr().out


def test_attained_service_grows_while_a_job_runs(cluster, capsys):
    as_of_ms = SystemClock().now_ms() - 10_000
    cluster.put_job(job(7, gpus=8, attained_gpu_ms=1_000, counting=True, as_of_ms=as_of_ms))
    assert call("ls") == 0
    attained = int(capsys.readouterr().out.splitlines()[1].split()[7])
    assert 81 <= attained < 100


def preempted_job():
    at_ms = 1_700_000_000_000
    first = Attempt(
        run_id="7-1",
        nodes=("node-0", "node-1"),
        placed_at_ms=at_ms,
        running_at_ms=at_ms + 100,
        asked_at_ms=at_ms + 5_000,
        ended_at_ms=at_ms + 6_500,
        outcome=RunOutcome.PREEMPTED,
        saved_step=120,
        save_ms=31,
        stop_ms=1_200,
    )
    second = Attempt(
        run_id="7-2",
        nodes=("node-0",),
        placed_at_ms=at_ms + 9_000,
        running_at_ms=at_ms + 9_250,
        resumed_step=120,
        restore_ms=40,
        first_step_ms=2_100,
    )
    return job(7, name="wide", run_id="7-2", attempts=2, preemptions=1, runs=(first, second))


def test_show_tells_what_each_preemption_took(cluster, capsys):
    cluster.put_job(preempted_job())
    assert call("show", "wide") == 0
    lines = capsys.readouterr().out.splitlines()
    row = lines[lines.index("preemptions") + 2]
    assert re.split(r"\s{2,}", row)[2:] == [
        "31ms", "1.2s", "1.5s", "2.5s", "250ms", "40ms", "2.1s", "120 -> 120",
    ]  # fmt: skip


def test_show_gives_the_phases_as_numbers(cluster, capsys):
    cluster.put_job(preempted_job())
    assert call("show", "7", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    [phases] = document["phases"]
    assert (phases["free_ms"], phases["waited_ms"], phases["start_ms"]) == (1_500, 2_500, 250)
    assert document["preemptions"] == 1


def test_show_tells_the_story(cluster, capsys):
    cluster.put_job(job(7, state=JobState.FAILED, exit_code=None, signal=9))
    cluster.put_fact(JobQueued(job_id=7, queue_index=0, at_ms=1_700_000_000_000))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0"}))
    cluster.put_fact(JobDemoted(job_id=7, queue_index=1, attained_gpu_ms=80_000))
    cluster.put_fact(RunStopping(job_id=7, run_id="7-1", reason="Preempt", for_job=9))
    cluster.put_fact(JobEnded(job_id=7, state=JobState.FAILED, reason="TaskFailed", message="oh"))
    cluster.put_fact(JobQueued(job_id=70, queue_index=5))
    assert call("show", 7) == 0
    out = capsys.readouterr().out
    story = [line[28:].strip() for line in out[out.index("story") :].splitlines()[1:]]
    assert story == [
        "queued in Q1",
        "run 7-1 placed on node-0 (0 GPUs)",
        "demoted to Q2 at 80 GPU-s",
        "run 7-1 asked to stop: Preempt for job 9",
        "ended, FAILED: oh",
    ]
    assert "2023-11-14 22:13:20 +0000" in out
    assert "0:9" in out


def test_problems_and_odd_names_cannot_repaint_the_terminal(cluster, capsys):
    problems = (Problem(path="name", message="bad \x1b[2J"),)
    cluster.put_job(job(7, name="\x1b[31mred", state=JobState.REJECTED, problems=problems))
    assert call("show", 7) == 0
    assert call("ls", "--all") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "bad \ufffd[2J" in out


def test_a_job_may_be_named(cluster, capsys):
    cluster.put_job(job(3, name="wide", state=JobState.FAILED))
    cluster.put_job(job(4, name="wide", state=JobState.RUNNING))
    assert call("show", "wide", "-o", "name") == 0
    assert capsys.readouterr().out == "4\n"


def test_a_name_that_means_several_jobs_is_told_with_them(cluster, capsys):
    cluster.put_job(job(3, name="wide"))
    cluster.put_job(job(4, name="wide"))
    assert call("show", "wide") == 2
    assert "3 (RUNNING), 4 (RUNNING); use a number" in capsys.readouterr().err


def test_a_job_that_is_not_there_exits_3(cluster, capsys):
    cluster.put_job(job(3, name="wide"))
    assert call("show", "wild") == 3
    assert "did you mean 'wide'?" in capsys.readouterr().err
    assert call("show", "99") == 3
    assert call("why", "99") == 3
    assert call("wait", "99", "3") == 3
    assert call("cancel", "99") == 3


def test_a_stored_job_that_no_scheduler_has_read_is_told(cluster, capsys, monkeypatch):
    monkeypatch.setattr("cli.client.VIEW_TIMEOUT_S", 0.05)
    call("submit", "--", "x")
    assert call("show", 1) == 6
    assert "no scheduler has read it" in capsys.readouterr().err


EXPLANATION = Explanation(
    job_id=7,
    state=JobState.QUEUED,
    reason="Resources",
    message="needs 8 GPUs; 3 left by the jobs ahead of it",
    queue_index=1,
    attained_gpu_ms=90_000,
    next_limit_gpu_ms=7_200_000,
    position=4,
    ahead_gpus=5,
    capacity_gpus=8,
    waited_ms=65_000,
    promoted_at_waited_ms=None,
    story=("1700000000000 submitted by ada",),
)


def test_why_begins_with_one_sentence(cluster, capsys):
    cluster.put_job(job(7, state=JobState.QUEUED))
    cluster.answer_api(EXPLANATION)
    assert call("why", 7) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "needs 8 GPUs; 3 left by the jobs ahead of it"
    assert "  attained       90 GPU-s, demoted at 2.0 GPU-h" in lines
    assert lines[-1] == "  2023-11-14 22:13:20 +0000  submitted by ada"
    assert call("why", 7, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["position"] == 4


def test_why_without_a_scheduler_exits_6(cluster, capsys):
    cluster.put_job(job(7))
    assert call("why", 7) == 6
    assert "no scheduler answers" in capsys.readouterr().err


def test_why_passes_on_what_the_scheduler_cannot_answer(cluster, capsys):
    cluster.put_job(job(7))
    cluster.answer_api(ApiError(message="no job 7 here"))
    assert call("why", 7) == 3
    assert "no job 7 here" in capsys.readouterr().err
