"""The launcher as its own process on a real nats-server: killed, adopted, refused, stopped."""

import asyncio
import os
import signal
import sys

import pytest

from broker.schemas.run import RunExited, RunPrepared, RunStarted, StopReason
from broker.topology import INPUT
from launcher import process_tree
from tests.process.launcher.support import NODE, Commands, until, workers

pytestmark = [pytest.mark.process, pytest.mark.nats]


class Outside(Commands):
    """A node whose launcher is a process of its own."""

    def __init__(self, bus, folder, url):
        super().__init__(bus, folder)
        self._url = url

    async def launch(self, *options: str) -> asyncio.subprocess.Process:
        before = (await self.bus.stream_state(INPUT)).last_seq
        process = await self.spawn(*options)
        while (await self.bus.stream_state(INPUT)).last_seq == before:
            assert process.returncode is None
            await asyncio.sleep(0.01)
        return process

    async def spawn(self, *options: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "launcher",
            f"--nats={self._url}",
            f"--node={NODE}",
            f"--state-dir={self.folder / 'state'}",
            f"--run-dir={self.folder / 'run'}",
            f"--checkpoint-root={self.folder / 'checkpoints'}",
            "--ports=23000-23999",
            *options,
            stderr=asyncio.subprocess.PIPE,
        )


@pytest.fixture
async def outside(nats_bus, nats_url, tmp_path):
    made = Outside(nats_bus, tmp_path, nats_url)
    yield made
    for folder in (tmp_path / "state" / "runs").glob("*"):
        process_tree.signal_all(made.processes(folder.name), signal.SIGKILL)


async def ended(process: asyncio.subprocess.Process) -> int:
    await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode is not None
    return process.returncode


async def test_a_killed_launcher_is_replaced_without_harm_to_training(outside):
    first = await outside.launch()
    running = await outside.run("echo up; sleep 60")
    ends = await outside.run("sleep 0.3; exit 3", workers(1, first_gpu=1))
    waiting = await outside.prepare("echo late", workers(1, first_gpu=2))
    await outside.printed(running, b"up")
    pid = (await outside.started(running)).pids["worker-0"]
    await outside.started(ends)
    await outside.heard(RunPrepared, waiting)
    os.kill(first.pid, signal.SIGKILL)
    await ended(first)
    await outside.stop(waiting)
    second = await outside.launch()
    assert (await outside.exit_of(ends)).tasks[0].exit_code == 3
    assert process_tree.is_alive(pid)
    assert (await outside.exit_of(waiting)).tasks == ()
    await outside.preempt(running)
    assert (await outside.exit_of(running)).asked is StopReason.PREEMPT
    for run_id in (running, ends):
        assert len(await outside.all_heard(RunStarted, run_id)) == 1
        assert len(await outside.all_heard(RunExited, run_id)) == 1
    second.terminate()
    assert await ended(second) == 0


async def test_descendants_are_gone_also_when_launcher_and_supervisor_are_killed(outside):
    first = await outside.launch()
    run_id = await outside.run("trap '' TERM; setsid sleep 600 & echo up; sleep 600")
    await outside.printed(run_id, b"up")
    await outside.started(run_id)
    pids = outside.processes(run_id)
    assert len(pids) >= 2
    supervisor = outside.supervisor_of(run_id)
    os.kill(first.pid, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)
    await ended(first)
    second = await outside.launch()
    exited = await outside.exit_of(run_id)
    assert exited.lost
    assert not [pid for pid in pids if process_tree.is_alive(pid)]
    second.terminate()
    assert await ended(second) == 0


async def test_a_second_launcher_on_the_same_state_folder_is_refused(outside):
    first = await outside.launch()
    second = await outside.spawn()
    _, errors = await asyncio.wait_for(second.communicate(), 20)
    assert second.returncode == 1
    assert f"another launcher (process {first.pid}) already uses".encode() in errors
    assert b"Traceback" not in errors
    first.terminate()
    assert await ended(first) == 0


async def test_a_launcher_that_takes_its_tasks_along_leaves_nothing(outside):
    process = await outside.launch("--on-exit=stop")
    run_id = await outside.run("echo up; sleep 60")
    await outside.printed(run_id, b"up")
    await outside.started(run_id)
    family = process_tree.descendants(process.pid)
    assert family
    process.terminate()
    assert await ended(process) == 0
    exited = await outside.exit_of(run_id)
    assert exited.asked is StopReason.SHUTDOWN
    await until(lambda: not [pid for pid in family if process_tree.is_alive(pid)])
    assert outside.processes(run_id) == []
