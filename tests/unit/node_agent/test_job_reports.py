"""A job's lines: strict, bounded, and only rank 0 or the chief speaks to the scheduler."""

import json

import pytest

from broker.schemas.run import RunCheckpointed, RunResumed, TensorsObserved
from node_agent.core import job_reports
from node_agent.core.job_reports import JobBook, MalformedLineError


def line(kind: str, **fields) -> bytes:
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


def hello(run_id="7-1", task="worker-0", rank=0) -> bytes:
    return line("hello", run_id=run_id, task=task, rank=rank)


class Job:
    """One connection with a clock of its own."""

    def __init__(self, book: JobBook, **who) -> None:
        self.book = book
        self.who = book.open(hello(**who))

    def say(self, kind: str, at_ms: int = 0, **fields):
        text = line(kind, **fields)
        return self.book.hear(self.who, text, now_ms=1000 + at_ms, monotonic_ms=at_ms)


@pytest.fixture
def book() -> JobBook:
    return JobBook("n1")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"not json\n",
        b"[1]\n",
        b"\xff\xfe\n",
        b"[" * 100_000,
        line("progress", step=1),
        line("hello", run_id="7-1", task="worker-0"),
        hello(run_id="7"),
        hello(run_id="../7-1"),
        hello(rank=-1),
        hello(task=""),
        hello(task="x" * 65),
    ],
)
def test_a_connection_must_start_with_a_valid_hello(book, first) -> None:
    with pytest.raises(MalformedLineError):
        book.open(first)
    assert book.progress(0) == ()


@pytest.mark.parametrize(
    "bad",
    [
        b"{}\n",
        line("progress"),
        line("progress", step=-1),
        line("progress", step=1, metrics={"loss": "low"}),
        line("saved", step=1, path="x" * 4097),
        line("tensors", tensor_bytes=[-1]),
        line("resumed", step=2**63),
    ],
)
def test_a_line_that_breaks_the_rules_is_malformed(book, bad) -> None:
    job = Job(book)
    with pytest.raises(MalformedLineError):
        book.hear(job.who, bad, now_ms=0, monotonic_ms=0)


def test_a_type_of_the_future_is_counted_and_ignored(book) -> None:
    assert Job(book).say("gradient_noise", value=3) is None
    assert book.unknown_lines == 1


def test_the_newest_progress_of_a_run_is_kept(book) -> None:
    job = Job(book)
    job.say("progress", step=1, total_steps=9, metrics={"loss": 0.5, "nan": None})
    job.say("progress", at_ms=5, step=2, metrics={"loss": 0.25})
    (progress,) = book.progress(0)
    assert (progress.run_id, progress.step, progress.metrics) == ("7-1", 2, {"loss": 0.25})
    assert progress.at_ms == 1005


def test_a_higher_rank_is_heard_only_until_a_lower_one_speaks(book) -> None:
    first, second = Job(book), Job(book, task="worker-1", rank=1)
    second.say("progress", step=3)
    assert book.progress(0)[0].step == 3
    first.say("progress", step=2)
    second.say("progress", step=4)
    assert book.progress(0)[0].step == 2


def test_a_save_becomes_an_input_with_a_stable_id(book) -> None:
    out = Job(book).say("saved", step=12, path="/c/12", save_ms=31, size_bytes=9, asked=True)
    assert out.message == RunCheckpointed(
        node="n1", run_id="7-1", step=12, path="/c/12", save_ms=31, size_bytes=9, asked=True
    )
    assert out.message_id == "7-1/n1/asked-12"


def test_periodic_saves_are_told_once_in_ten_seconds_asked_ones_always(book) -> None:
    job = Job(book)
    assert job.say("saved", at_ms=0, step=1).message_id == "7-1/n1/saved-1"
    assert job.say("saved", at_ms=9_999, step=2) is None
    assert job.say("saved", at_ms=9_999, step=2, asked=True) is not None
    assert job.say("saved", at_ms=10_000, step=3) is not None


def test_even_asked_saves_are_bounded(book) -> None:
    job = Job(book)
    told = [job.say("saved", step=step, asked=True) for step in range(50)]
    assert len([out for out in told if out]) == job_reports.MAX_ASKED_SAVES


def test_resume_and_tensors_are_told_once_a_run(book) -> None:
    job = Job(book)
    resumed = job.say("resumed", step=12, restore_ms=40, first_step_ms=2100)
    assert resumed.message == RunResumed(
        node="n1", run_id="7-1", step=12, restore_ms=40, first_step_ms=2100
    )
    tensors = job.say("tensors", tensor_bytes=[4, 8])
    assert tensors.message == TensorsObserved(node="n1", run_id="7-1", tensor_bytes=(4, 8))
    assert job.say("resumed", step=12) is None
    assert job.say("tensors", tensor_bytes=[4, 8]) is None


def test_only_rank_zero_and_the_chief_speak_to_the_scheduler(book) -> None:
    assert Job(book, task="worker-1", rank=1).say("saved", step=1) is None
    assert Job(book, task="chief-0", rank=2).say("saved", step=1) is not None


def test_a_run_is_forgotten_a_minute_after_its_last_connection(book) -> None:
    first, second = Job(book), Job(book, task="worker-1", rank=1)
    first.say("progress", step=1)
    book.close(first.who, 0)
    assert len(book.progress(500_000)) == 1
    book.close(second.who, 500_000)
    assert len(book.progress(559_999)) == 1
    assert book.progress(560_000) == ()


def test_too_many_or_too_long_metrics_are_cut_not_refused(book) -> None:
    metrics = {"x" * 65: 1.0, "none": None} | {str(n): float(n) for n in range(40)}
    Job(book).say("progress", step=1, metrics=metrics)
    (progress,) = book.progress(0)
    assert list(progress.metrics) == [str(n) for n in range(32)]


def test_the_number_of_runs_is_bounded(book, monkeypatch) -> None:
    monkeypatch.setattr(job_reports, "MAX_RUNS", 2)
    Job(book)
    Job(book, run_id="8-1")
    Job(book, task="worker-1", rank=1)
    with pytest.raises(MalformedLineError, match="more than 2 runs"):
        Job(book, run_id="9-1")


def test_a_new_run_takes_the_place_of_the_one_closed_longest_ago(book, monkeypatch) -> None:
    monkeypatch.setattr(job_reports, "MAX_RUNS", 3)
    jobs = [Job(book, run_id=f"{n}-1") for n in (1, 2, 3)]
    for job in jobs:
        job.say("progress", step=1)
    book.close(jobs[2].who, 10)
    book.close(jobs[1].who, 20)
    Job(book, run_id="4-1").say("progress", step=1)
    assert [progress.run_id for progress in book.progress(30)] == ["1-1", "2-1", "4-1"]
