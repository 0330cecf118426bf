"""Reports to the agent never block or fail the training."""

import json
import socket

import pytest

from tiresias.protocol import MAX_WAITING_LINES, JobReporter


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Agent:
    """The listening end of a job socket."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(5)

    def accept(self):
        connection, _ = self.listener.accept()
        connection.settimeout(5)
        return connection, connection.makefile("r")

    def close(self):
        self.listener.close()
        self.path.unlink()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def agent(tmp_path):
    agent = Agent(tmp_path / "job.sock")
    yield agent
    agent.listener.close()


@pytest.fixture
def reporter(tmp_path, clock):
    reporter = JobReporter(
        tmp_path / "job.sock", run_id="7-1", task="worker-0", rank=0, clock=clock
    )
    yield reporter
    reporter._hang_up()


def test_the_first_line_is_hello_and_reports_follow(agent, reporter, tmp_path):
    reporter.progress(12, 100, {"loss": 0.5, "bad": float("nan")})
    reporter.tensors([400, 40])
    reporter.saved(12, tmp_path, save_ms=3, size_bytes=10, asked=True)
    reporter.resumed(12, restore_ms=4, first_step_ms=5)
    connection, lines = agent.accept()
    with connection, lines:
        assert [json.loads(lines.readline()) for _ in range(5)] == [
            {"type": "hello", "run_id": "7-1", "task": "worker-0", "rank": 0},
            {"type": "progress", "step": 12, "total_steps": 100, "metrics": {"loss": 0.5}},
            {"type": "tensors", "tensor_bytes": [400, 40]},
            {
                "type": "saved",
                "step": 12,
                "path": str(tmp_path),
                "save_ms": 3,
                "size_bytes": 10,
                "asked": True,
            },
            {"type": "resumed", "step": 12, "restore_ms": 4, "first_step_ms": 5},
        ]


def test_progress_is_told_at_most_twice_a_second(agent, reporter, clock):
    for step in range(1, 11):
        reporter.progress(step, None, {})
        clock.now_s += 0.125
    connection, lines = agent.accept()
    reporter.close()
    with connection, lines:
        assert [json.loads(line).get("step") for line in lines] == [None, 1, 5, 9, 10]


def test_without_an_agent_nothing_fails_and_little_is_kept(reporter, tmp_path):
    for step in range(1000):
        reporter.saved(step, tmp_path, save_ms=1, size_bytes=1, asked=False)
    assert not reporter.flush(0.0)
    assert len(reporter._waiting) == MAX_WAITING_LINES


def test_an_agent_that_comes_late_or_again_is_greeted(tmp_path, reporter, clock):
    reporter.tensors([1])
    first = Agent(tmp_path / "job.sock")
    clock.now_s += 2
    reporter.tensors([2])
    connection, lines = first.accept()
    assert [json.loads(lines.readline())["type"] for _ in range(3)] == ["hello"] + ["tensors"] * 2
    lines.close()
    connection.close()
    first.close()
    reporter.tensors([3])
    second = Agent(tmp_path / "job.sock")
    clock.now_s += 2
    reporter.tensors([4])
    connection, lines = second.accept()
    with connection, lines:
        assert json.loads(lines.readline())["type"] == "hello"
        assert json.loads(lines.readline())["tensor_bytes"] == [3]
    second.listener.close()


def test_an_agent_that_does_not_read_never_blocks_the_job(agent, reporter):
    for _ in range(200):
        reporter.tensors(list(range(5000)))
    assert len(reporter._waiting) == MAX_WAITING_LINES


def test_flush_waits_for_a_slow_reader(agent, tmp_path):
    reporter = JobReporter(tmp_path / "job.sock")
    reporter.tensors([7])
    connection, lines = agent.accept()
    for _ in range(30):
        reporter.tensors(list(range(5000)))
    assert reporter._waiting
    lines.close()
    connection.recv(1 << 20)
    while reporter._waiting or reporter._line:
        reporter.flush(0.0)
        connection.recv(1 << 20)
    assert reporter.flush(0.0)
    connection.close()
    reporter.close()


def test_a_line_over_the_limit_is_dropped(agent, reporter):
    reporter.tensors([10**9] * 200_000)
    reporter.tensors([1])
    connection, lines = agent.accept()
    with connection, lines:
        assert json.loads(lines.readline())["type"] == "hello"
        assert json.loads(lines.readline())["tensor_bytes"] == [1]


def test_offline_every_report_is_nothing(tmp_path):
    reporter = JobReporter(None)
    reporter.progress(1, None, {})
    reporter.saved(1, tmp_path, save_ms=1, size_bytes=1, asked=True)
    assert reporter.flush(0.0)
    reporter.close()
