"""Any NATS client submits: two that know nothing of Tiresias, against a real server.

Nobody needs to be alive but the server: the printed number is the request's place in the log.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from broker import codec, topology
from broker.embedded import EmbeddedServer
from broker.nats_bus import NatsBus, connect
from broker.schemas.base import Input
from broker.schemas.job import JobRefused, JobSubmitted
from tests.contract import npm_packages

pytestmark = pytest.mark.nats

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
JOB = {"name": "first", "run": ["python3", "-c", "print(1)"], "workers": 2, "labels": {"a": "ä\n"}}


class Cluster:
    """A server with our streams, and the command lines of the clients against it."""

    def __init__(self, url: str, bus: NatsBus) -> None:
        self.url = url
        self.bus = bus

    async def run(self, *command: str | Path) -> tuple[int, str]:
        """Return the exit code and the output of a client."""
        process = await asyncio.create_subprocess_exec(
            *command,
            "--nats",
            self.url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode().strip()

    async def input_at(self, seq: int) -> Input:
        """Read one message of the input log as the scheduler would."""
        log = self.bus.read_until(topology.INPUT, from_seq=seq, last_seq=seq)
        async with aclosing(log) as stored:
            message = await anext(stored)
        return codec.decode_input(message.subject, message.data)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with EmbeddedServer(tmp_path / "store") as server:
        bus = await connect(server.url, name="test")
        try:
            await topology.ensure(bus)
            yield Cluster(server.url, bus)
        finally:
            await bus.close()


@pytest.fixture
def python_client() -> list[str | Path]:
    return [sys.executable, CLIENTS / "submit.py"]


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    folder = npm_packages.install(tmp_path_factory.mktemp("node"), "@nats-io/transport-node@3")
    return ["node", shutil.copy(CLIENTS / "submit.mjs", folder)]


@pytest.fixture(params=["python", "node"])
def client(request: pytest.FixtureRequest) -> list[str | Path]:
    command: list[str | Path] = request.getfixturevalue(f"{request.param}_client")
    return command


async def test_the_printed_number_is_the_place_of_the_request_in_the_log(
    cluster: Cluster, client: list[str | Path], tmp_path: Path
) -> None:
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps(JOB))
    for expected in (1, 2):
        assert await cluster.run(*client, job_file, "--user", "ada") == (0, str(expected))
        message = await cluster.input_at(expected)
        assert isinstance(message, JobSubmitted)
        assert (message.user, message.spec.name, message.spec.gpus) == ("ada", "first", 2)
        assert message.spec.labels == JOB["labels"]


async def test_the_same_key_twice_is_one_job(cluster: Cluster, client: list[str | Path]) -> None:
    first = await cluster.run(*client, "--user", "ada", "--key", "nightly")
    again = await cluster.run(*client, "--user", "ada", "--key", "nightly")
    assert first == again == (0, "1")
    assert (await cluster.bus.stream_state(topology.INPUT)).last_seq == 1


async def test_a_wrong_request_is_stored_with_its_problems(
    cluster: Cluster, client: list[str | Path], tmp_path: Path
) -> None:
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({"name": "first", "run": "true", "worker": 2}))
    assert await cluster.run(*client, job_file, "--user", "ada") == (0, "1")
    message = await cluster.input_at(1)
    assert isinstance(message, JobRefused)
    assert [problem.path for problem in message.problems] == ["worker"]


async def test_without_a_server_the_client_says_so(client: list[str | Path]) -> None:
    code, output = await Cluster("nats://127.0.0.1:1", None).run(*client)  # type: ignore[arg-type]
    assert code == 1
    assert "nats://127.0.0.1:1" in output
    assert "Traceback" not in output
