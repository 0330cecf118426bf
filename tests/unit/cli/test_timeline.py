"""The timeline, the sentences of a story, and the verdict of the demo."""

import pytest

from broker.schemas.fact import (
    JobHeld,
    JobPromoted,
    JobQueued,
    JobRejected,
    RunCheckpointSaved,
    RunEnded,
    RunRestored,
    RunRunning,
)
from broker.schemas.job import Problem
from broker.schemas.views import Attempt, JobState, RunOutcome
from cli import demo_report, timeline
from cli.story import sentence
from cli.timeline import Phase
from tests.unit.cli.support import job

FIRST = Attempt(
    run_id="1-1",
    placed_at_ms=10_000,
    running_at_ms=20_000,
    asked_at_ms=50_000,
    ended_at_ms=60_000,
    outcome=RunOutcome.PREEMPTED,
    saved_step=40,
)
SECOND = Attempt(
    run_id="1-2",
    placed_at_ms=80_000,
    running_at_ms=90_000,
    ended_at_ms=100_000,
    outcome=RunOutcome.SUCCEEDED,
    resumed_step=40,
)


def long_job(**more):
    known = {
        "state": JobState.SUCCEEDED,
        "workers": 2,
        "gpus_per_worker": 4,
        "gpus": 8,
        "submitted_at_ms": 0,
        "ended_at_ms": 100_000,
        "attained_gpu_ms": 8 * 40_000,
        "runs": (FIRST, SECOND),
    }
    return job(1, "long", **(known | more))


def short_job(**more):
    known = {
        "state": JobState.SUCCEEDED,
        "submitted_at_ms": 50_000,
        "ended_at_ms": 75_000,
        "attained_gpu_ms": 10_000,
    }
    return job(2, "short", **(known | more))


def test_a_bar_shows_each_phase_of_a_job():
    lines = timeline.draw([long_job(), short_job()], 0, width=10, marks=".+#s")
    assert lines[0] == "1 long (8 GPUs)  .+###s..+#"
    assert lines[1] == "2 short (1 GPU)       .."
    assert "0s   50.0s1m40s" in lines[2]
    assert lines[3].strip() == ". waiting  + starting  # running  s saving, stopping"


def test_a_life_has_no_gaps():
    life = timeline.segments(long_job(), 0)
    assert [part.start_ms for part in life[1:]] == [part.end_ms for part in life[:-1]]
    assert (life[0].start_ms, life[-1].end_ms) == (0, 100_000)


def test_a_job_that_still_runs_is_drawn_up_to_now():
    running = Attempt(run_id="1-1", placed_at_ms=10, running_at_ms=20)
    view = long_job(state=JobState.RUNNING, ended_at_ms=None, runs=(running,))
    last = timeline.segments(view, 500)[-1]
    assert (last.phase, last.end_ms) == (Phase.RUNNING, 500)


def test_no_jobs_draw_nothing():
    assert timeline.draw([], 0) == []


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (JobQueued(job_id=1, queue_index=1, reason="Preempted"), "queued in Q2: Preempted"),
        (
            JobRejected(job_id=1, problems=(Problem(path="", message="x"),)),
            "rejected for 1 problem",
        ),
        (JobHeld(job_id=1, user="ada"), "held: by ada"),
        (JobHeld(job_id=1), "held"),
        (RunRunning(job_id=1, run_id="1-1"), "run 1-1 is up"),
        (
            RunCheckpointSaved(job_id=1, run_id="1-1", step=12, save_ms=31, asked=True),
            "run 1-1 saved step 12 in 31ms",
        ),
        (
            RunRestored(job_id=1, run_id="1-2", step=12, restore_ms=40, first_step_ms=2_100),
            "run 1-2 continues from step 12 (restore 40ms, first step 2.1s)",
        ),
        (
            RunEnded(job_id=1, run_id="1-1", outcome=RunOutcome.LOST, message="node-0"),
            "run 1-1 ended, LOST: node-0",
        ),
        (JobPromoted(job_id=1, waited_ms=60_000), "promoted to Q1 after waiting 1m00s"),
    ],
)
def test_facts_are_told_in_words(fact, text):
    assert sentence(fact) == text


def kept(views, losses=(0.5, 0.5)):
    return [check.is_kept for check in demo_report.checks(views, losses)]


def test_the_demo_passes_when_all_promises_are_kept():
    assert kept([long_job(), short_job()]) == [True] * 4


@pytest.mark.parametrize(
    ("views", "losses", "broken"),
    [
        ([long_job(), short_job(state=JobState.FAILED)], (0.5, 0.5), {0}),
        ([long_job(runs=(SECOND,)), short_job()], (0.5, 0.5), {1, 2}),
        ([long_job(), short_job()], (0.5, 0.6), {3}),
        ([long_job(), short_job()], (0.5, None), {3}),
    ],
)
def test_the_demo_fails_when_a_promise_is_broken(views, losses, broken):
    assert {n for n, is_kept in enumerate(kept(views, losses)) if not is_kept} == broken


@pytest.mark.parametrize(("saved", "resumed"), [(40, 41), (None, None), (0, 0), (40, None)])
def test_the_long_job_must_go_on_at_the_step_where_it_stopped(saved, resumed):
    runs = (
        Attempt(run_id="1-1", asked_at_ms=1, outcome=RunOutcome.PREEMPTED, saved_step=saved),
        Attempt(run_id="1-2", resumed_step=resumed),
    )
    assert kept([long_job(runs=runs)])[2] is False


def test_the_summary_stands_beside_fifo(capsys):
    views = [long_job(), short_job()]
    assert demo_report.fifo_completion_ms(views, {"node-0": 4, "node-1": 4}) == {
        1: 40_000,
        2: 10_000,
    }
    demo_report.print_summary(views, {"node-0": 4, "node-1": 4})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["long", "8", "1m40s", "40.0s"]
    assert "saved step 40" in lines[-1]
