"""How a service runs, stops and fails."""

import asyncio
import logging
import os
import signal
import sys

import pytest

from broker import runtime
from broker.errors import BusError
from broker.runtime import KeyValueFormatter, Supervisor, configure_logging, run_service


@pytest.fixture(autouse=True)
def _own_logging():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def line_of(message, *args, **extra):
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, message, args, None)
    vars(record).update(extra)
    return KeyValueFormatter().format(record)


def test_a_record_is_one_line_of_pairs():
    line = line_of("run %s up", "7-1", node="n1", pid=12, note="two words")
    assert line.startswith("time=2")
    assert line.endswith('level=info logger=x message="run 7-1 up" node=n1 pid=12 note="two words"')


def test_what_comes_from_outside_cannot_forge_a_line():
    line = line_of("name %s", 'a\nlevel=error "b"', empty="")
    assert "\n" not in line
    assert line.endswith('message="name a\\nlevel=error \\"b\\"" empty=""')


def test_logs_go_to_stderr_from_the_level_on(capsys):
    configure_logging("warning")
    logging.getLogger("x").info("quiet")
    logging.getLogger("x").warning("loud")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "message=loud" in captured.err


async def test_the_first_failure_cancels_the_rest_and_is_raised_as_itself():
    ended = []

    async def endless():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def failing():
        await asyncio.sleep(0)
        raise BusError("boom")

    async def service():
        async with Supervisor() as supervisor:
            supervisor.start("endless", endless())
            supervisor.start("failing", failing())
            await asyncio.Event().wait()

    with pytest.raises(BusError, match="boom"):
        await service()
    assert ended == ["endless"]


async def test_leaving_the_block_ends_all_tasks():
    async with Supervisor() as supervisor:
        endless = supervisor.start("endless", asyncio.Event().wait())
        brief = supervisor.start("brief", asyncio.sleep(0, "done"))
        assert await brief == "done"
    assert endless.cancelled()
    assert endless.get_name() == "endless"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event(number):
    stopped = []

    async def main(stop):
        os.kill(os.getpid(), number)
        await stop.wait()
        stopped.append(number)

    run_service(main)
    assert stopped == [number]


def test_an_echo_of_the_signal_changes_nothing():
    stopped = []

    async def main(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        stopped.append(True)

    run_service(main)
    assert stopped == [True]


def test_a_second_signal_cancels_and_the_exit_code_tells(capsys, monkeypatch):
    monkeypatch.setattr(runtime, "_ECHO_S", -1.0)

    async def main(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(SystemExit) as caught:
        run_service(main)
    assert caught.value.code == 1
    assert "second signal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "has_trace"),
    [
        (BusError("no server"), False),
        (OSError(28, "No space left on device", "journal"), False),
        (ValueError("a bug"), True),
    ],
)
def test_a_failure_is_logged_and_exits_with_one(capsys, error, has_trace):
    async def main(stop):
        raise error

    with pytest.raises(SystemExit) as caught:
        run_service(main)
    assert caught.value.code == 1
    logged = capsys.readouterr().err
    assert "service failed" in logged
    assert str(error) in logged
    assert ("Traceback" in logged) is has_trace


@pytest.mark.process
async def test_a_child_dies_with_its_parent():
    child = (
        "import os, time; from broker.runtime import die_with_parent; die_with_parent();"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent_code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1]])\n"
        "time.sleep(60)\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", parent_code, child, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    await parent.stdout.readline()
    parent.kill()
    async with asyncio.timeout(20):
        assert await parent.stdout.read() == b""
    await parent.wait()
