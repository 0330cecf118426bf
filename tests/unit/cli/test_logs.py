"""`logs`: exact bytes, whole lines behind prefixes, across attempts, with the outcome's code."""

import msgspec
import pytest

from broker import codec, subjects
from broker.schemas.api import LogChunk, LogRead
from broker.schemas.views import Attempt, JobState, RunOutcome
from tests.unit.cli.support import call, job, placed, put_fact, put_job

STEP = 7


class FakeLauncher:
    """Answers reads of logs in small pieces; a log in ``open_logs`` is not final yet."""

    def __init__(self, cluster, node="node-0"):
        self.logs: dict[tuple[str, str], bytes] = {}
        self.first_kept: dict[tuple[str, str], int] = {}
        self.open_logs: set[tuple[str, str]] = set()
        self.on_end = {}
        self.reads = 0
        cluster.answers[subjects.control(node, "logs")] = self.answer

    async def answer(self, bus, message):
        self.reads += 1
        read = codec.decode(LogRead, message.data)
        await bus.respond(message, codec.encode(await self.chunk(bus, read)))

    async def chunk(self, bus, read):
        key = (read.run_id, read.task)
        if key not in self.logs:
            return LogChunk(error=f"no log of {read.task} of run {read.run_id}")
        log = self.logs[key]
        start = max(read.offset, self.first_kept.get(key, 0))
        data = log[start : start + STEP]
        end = start + len(data)
        is_final = end == len(log) and key not in self.open_logs
        if is_final and key in self.on_end:
            await self.on_end.pop(key)(bus)
        return LogChunk(data=data, offset=start, next_offset=end, final=is_final)


@pytest.fixture
def launcher(cluster):
    return FakeLauncher(cluster)


ODD = b"line 1\n\xff\x00binary\r\n" + "日本語\n".encode() + b"no newline at the end"


def test_one_task_is_printed_byte_for_byte(cluster, launcher, capsysbinary):
    cluster.put_job(job(7))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0"}))
    launcher.logs["7-1", "worker-0"] = ODD
    assert call("logs", 7) == 0
    assert capsysbinary.readouterr().out == ODD


def test_several_tasks_have_their_names_before_each_line(cluster, launcher, capsysbinary):
    cluster.put_job(job(7))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0", "ps-0": "node-0"}))
    launcher.logs["7-1", "worker-0"] = b"first line\nsecond"
    launcher.logs["7-1", "ps-0"] = b"x\n"
    assert call("logs", 7) == 0
    assert capsysbinary.readouterr().out == (
        b"worker-0 | first line\nworker-0 | second\nps-0     | x\n"
    )


def test_following_goes_on_in_the_next_attempt_until_the_end(cluster, launcher, capsysbinary):
    first = Attempt(run_id="7-1", ended_at_ms=1, outcome=RunOutcome.PREEMPTED)
    cluster.put_job(job(7, run_id="7-1"))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0"}))
    launcher.logs["7-1", "worker-0"] = b"".join(b"a%d\n" % n for n in range(100))
    launcher.logs["7-2", "worker-0"] = b"b\nend"

    async def resume(bus):
        await put_job(bus, job(7, state=JobState.QUEUED, runs=(first,)))
        await put_fact(bus, placed(7, 2, {"worker-0": "node-0"}))
        await put_job(bus, job(7, run_id="7-2", runs=(first,)))

    async def finish(bus):
        await put_job(bus, job(7, state=JobState.SUCCEEDED, runs=(first,)))

    launcher.on_end = {("7-1", "worker-0"): resume, ("7-2", "worker-0"): finish}
    assert call("logs", "-f", 7) == 0
    captured = capsysbinary.readouterr()
    assert captured.out == b"".join(launcher.logs.values())
    assert b"attempt 2 on node-0" in captured.err
    assert b"job 7 digits: SUCCEEDED" in captured.err


@pytest.mark.parametrize(
    ("state", "code"),
    [(JobState.FAILED, 100), (JobState.CANCELLED, 101), (JobState.TIMED_OUT, 102)],
)
def test_following_ends_with_the_outcome(cluster, launcher, state, code):
    cluster.put_job(job(7, state=state))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0"}))
    launcher.logs["7-1", "worker-0"] = b"x"
    assert call("logs", "-f", 7) == code


def test_a_run_that_never_started_does_not_stop_the_view(cluster, launcher, capsysbinary):
    aborted = Attempt(run_id="7-1", ended_at_ms=1, outcome=RunOutcome.ABORTED)
    cluster.put_job(job(7, state=JobState.SUCCEEDED, runs=(aborted,)))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0"}))
    cluster.put_fact(placed(7, 2, {"worker-0": "node-0"}))
    launcher.logs["7-2", "worker-0"] = b"x\n"
    assert call("logs", "-f", 7) == 0
    captured = capsysbinary.readouterr()
    assert captured.out == b"x\n"
    assert b"no log of worker-0 of run 7-1" in captured.err


def test_a_node_that_does_not_answer_is_told(cluster, capsys):
    cluster.put_job(job(7, state=JobState.SUCCEEDED))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-9"}))
    assert call("logs", 7) == 6
    assert "worker-0 on node-9: nobody answers" in capsys.readouterr().err


def test_bytes_that_rotation_dropped_are_told(cluster, launcher, capsysbinary):
    cluster.put_job(job(7))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0"}))
    launcher.logs["7-1", "worker-0"] = b"0123456789"
    launcher.first_kept["7-1", "worker-0"] = 4
    assert call("logs", 7) == 0
    captured = capsysbinary.readouterr()
    assert captured.out == b"456789"
    assert b"4 older bytes are no longer kept" in captured.err


def test_one_task_or_attempt_can_be_chosen(cluster, launcher, capsysbinary):
    cluster.put_job(job(7))
    for attempt in (1, 2):
        cluster.put_fact(placed(7, attempt, {"worker-0": "node-0", "worker-1": "node-0"}))
        for rank in (0, 1):
            launcher.logs[f"7-{attempt}", f"worker-{rank}"] = b"%d.%d\n" % (attempt, rank)
    assert call("logs", 7, "--rank", 1) == 0
    assert capsysbinary.readouterr().out == b"1.1\n2.1\n"
    assert call("logs", 7, "--task", "worker-0", "--attempt", 2) == 0
    assert capsysbinary.readouterr().out == b"2.0\n"


def test_what_is_not_there_exits_3(cluster, launcher, capsys):
    cluster.put_job(job(7))
    assert call("logs", 7) == 3
    assert "has not started yet" in capsys.readouterr().err
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0"}))
    assert call("logs", 7, "--attempt", 5) == 3
    assert call("logs", 7, "--task", "worker-9") == 3
    assert "tasks: worker-0 (rank 0)" in capsys.readouterr().err


def test_leaving_the_view_exits_130_and_says_that_the_job_goes_on(cluster, capsys, monkeypatch):
    async def interrupted(*_):
        raise KeyboardInterrupt

    cluster.put_job(job(7))
    monkeypatch.setattr("cli.logs.follow_jobs", interrupted)
    assert call("logs", "-f", 7) == 130
    assert "job 7 goes on ('tiresias cancel 7' stops it)" in capsys.readouterr().err
    assert cluster.inputs() == []


def test_a_reader_that_stops_reading_ends_the_command_quietly(cluster, capsys, monkeypatch):
    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr("cli.output.print_table", closed)
    monkeypatch.setattr("cli.main.ignore_output", lambda: None)
    cluster.put_job(job(7))
    assert call("ls") == 0
    assert capsys.readouterr().err == ""


def test_submit_can_follow_its_job(cluster, launcher, capsysbinary):
    cluster.put_job(job(1, state=JobState.SUCCEEDED))
    cluster.put_fact(placed(1, 1, {"worker-0": "node-0"}))
    launcher.logs["1-1", "worker-0"] = b"hello\n"
    assert call("submit", "-q", "--follow", "--", "x") == 0
    assert capsysbinary.readouterr().out == b"1\nhello\n"


def test_an_open_log_is_followed_until_it_is_final(cluster, launcher, capsysbinary):
    cluster.put_job(job(7, run_id="7-1"))
    cluster.put_fact(placed(7, 1, {"worker-0": "node-0"}))
    key = ("7-1", "worker-0")
    launcher.logs[key] = b"early "
    launcher.open_logs.add(key)
    answer = launcher.chunk

    async def chunk(bus, read):
        if launcher.reads == 4:
            launcher.logs[key] += b"late"
            launcher.open_logs.clear()
            await put_job(bus, msgspec.structs.replace(job(7), state=JobState.SUCCEEDED))
        return await answer(bus, read)

    launcher.chunk = chunk
    assert call("logs", "-f", 7) == 0
    assert capsysbinary.readouterr().out == b"early late"
