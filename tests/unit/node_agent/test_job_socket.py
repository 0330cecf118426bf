"""The job socket: private, bounded, and a bad line costs only the connection that sent it."""

import asyncio
import json
import stat

import pytest

from broker.clock import ManualClock
from node_agent import job_socket
from node_agent.core.job_reports import MAX_LINE_BYTES, JobBook
from node_agent.job_socket import JobSocket, JobSocketError
from tests.unit.node_agent.support import until

HELLO = json.dumps({"type": "hello", "run_id": "7-1", "task": "worker-0", "rank": 0}).encode()
PROGRESS = json.dumps({"type": "progress", "step": 5}).encode()


class Served:
    """A socket with its book."""

    def __init__(self, folder) -> None:
        self.path = folder / "run" / "job.sock"
        self.book = JobBook("n1")
        self.told = []
        self.socket = JobSocket(self.path, self.book, ManualClock(), self.told.append)

    async def say(self, *lines: bytes):
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(b"".join(line + b"\n" for line in lines))
        return reader, writer

    def steps(self) -> list[int | None]:
        return [progress.step for progress in self.book.progress(0)]


@pytest.fixture
async def served(tmp_path):
    made = Served(tmp_path)
    await made.socket.start()
    yield made
    await made.socket.close()


async def test_folder_and_socket_are_for_the_owner_only(served) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(served.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "bad",
    [b"nonsense", HELLO, b"x" * (MAX_LINE_BYTES + 10)],
    ids=["not json", "second hello is unknown, then nonsense", "too long"],
)
async def test_a_bad_line_closes_only_its_own_connection(served, bad) -> None:
    _, good = await served.say(HELLO)
    reader, writer = await served.say(HELLO, bad, b"nonsense")
    assert await reader.read() == b""
    writer.close()
    good.write(PROGRESS + b"\n")
    await until(lambda: served.steps() == [5])
    good.close()


async def test_a_line_cut_off_by_the_end_of_a_job_is_not_read(served) -> None:
    reader, writer = await served.say(HELLO)
    writer.write(PROGRESS)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert served.steps() == []


async def test_a_line_of_almost_one_mebibyte_is_read(served) -> None:
    sizes = json.dumps({"type": "tensors", "tensor_bytes": [10**15] * 50_000}).encode()
    assert len(sizes) < MAX_LINE_BYTES
    _, writer = await served.say(HELLO, sizes)
    await until(lambda: served.told)
    writer.close()


async def test_the_number_of_connections_is_bounded(served, monkeypatch) -> None:
    monkeypatch.setattr(job_socket, "MAX_CONNECTIONS", 1)
    _, first = await served.say(HELLO, PROGRESS)
    await until(lambda: served.steps() == [5])
    reader, second = await served.say()
    assert await reader.read() == b""
    second.close()
    first.close()


async def test_the_socket_of_a_killed_agent_is_replaced(tmp_path) -> None:
    stale = Served(tmp_path)
    await stale.socket.start()
    stale.socket._server.close()
    assert stale.path.exists()
    fresh = Served(tmp_path)
    await fresh.socket.start()
    _, writer = await fresh.say(HELLO, PROGRESS)
    await until(lambda: fresh.steps() == [5])
    writer.close()
    await fresh.socket.close()
    assert not fresh.path.exists()


async def test_a_second_agent_is_refused_and_the_first_one_lives(served, tmp_path) -> None:
    second = Served(tmp_path)
    with pytest.raises(JobSocketError, match="another agent serves"):
        await second.socket.start()
    await second.socket.close()
    _, writer = await served.say(HELLO, PROGRESS)
    await until(lambda: served.steps() == [5])
    writer.close()


async def test_what_is_not_a_socket_is_not_removed(tmp_path) -> None:
    made = Served(tmp_path)
    made.path.parent.mkdir()
    made.path.write_text("precious")
    with pytest.raises(JobSocketError, match="is not a socket"):
        await made.socket.start()
    assert made.path.read_text() == "precious"


async def test_a_path_too_long_for_a_socket_is_said_so(tmp_path) -> None:
    with pytest.raises(JobSocketError, match="longer than 107 bytes"):
        await Served(tmp_path / ("x" * 120)).socket.start()
