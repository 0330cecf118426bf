"""Nothing of a run is left, whatever its processes try, and whoever is killed."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from broker.schemas.run import InventoryReported, RunExited, RunStarted, StopReason
from launcher import process_tree
from tests.process.launcher.support import Node, until, workers

pytestmark = pytest.mark.process

LOADERS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        os.setsid()
        if number == 0:
            os.execve("/bin/sleep", ["sleep", "600"], {})
        time.sleep(600)
        os._exit(0)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def loaders(tmp_path):
    program = tmp_path / "loaders.py"
    program.write_text(LOADERS)
    return (sys.executable, str(program))


async def all_up(node, run_id) -> list[int]:
    """Wait for the loaders, and return every process of the run."""
    await node.printed(run_id, b"up")
    supervisor = node.supervisor_of(run_id)
    await until(lambda: len(process_tree.descendants(supervisor)) == 5)
    return process_tree.descendants(supervisor)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pids) -> list[int]:
    return [pid for pid in pids if process_tree.is_alive(pid)]


@pytest.mark.parametrize("ask", ["preempt", "stop"])
async def test_children_in_sessions_of_their_own_are_gone_before_the_exit_is_told(
    node, loaders, ask
):
    run_id = await node.run(loaders)
    pids = await all_up(node, run_id)
    await getattr(node, ask)(run_id, grace_ms=300)
    exited = await node.exit_of(run_id)
    assert alive(pids) == []
    assert exited.leftover_pids == ()


async def test_children_left_by_a_finished_task_are_gone_before_the_exit_is_told(node):
    run_id = await node.run("setsid sleep 600 & echo $!; exit 0", grace="300ms")
    exited = await node.exit_of(run_id)
    assert exited.tasks[0].exit_code == 0
    assert alive([int(node.log(run_id))]) == []


async def test_a_killed_supervisor_takes_its_tasks_along_and_the_run_is_lost(node, loaders):
    run_id = await node.run(loaders)
    pids = await all_up(node, run_id)
    marked = node.processes(run_id)
    os.kill(node.supervisor_of(run_id), signal.SIGKILL)
    exited = await node.exit_of(run_id)
    assert exited.lost
    assert alive(marked) == []
    process_tree.signal_all(alive(pids), signal.SIGKILL)


async def test_a_task_without_its_environment_is_gone_with_its_killed_supervisor(node):
    run_id = await node.run("echo up; exec env -i sleep 600")
    await node.printed(run_id, b"up")
    pid = (await node.started(run_id)).pids["worker-0"]
    await until(lambda: command_line(pid).startswith(b"sleep"))
    os.kill(node.supervisor_of(run_id), signal.SIGKILL)
    assert (await node.exit_of(run_id)).lost
    assert alive([pid]) == []


async def test_a_supervisor_told_to_terminate_stops_its_run(node):
    run_id = await node.run("echo up; sleep 60")
    await node.printed(run_id, b"up")
    os.kill(node.supervisor_of(run_id), signal.SIGTERM)
    exited = await node.exit_of(run_id)
    assert exited.asked is StopReason.SHUTDOWN
    assert not exited.lost


async def test_runs_go_on_without_the_launcher_and_the_next_one_adopts_them(node):
    ends = await node.run("sleep 0.5; echo done; exit 3")
    goes_on = await node.run("echo up; sleep 60", workers(1, first_gpu=1))
    prepared = await node.prepare("echo late", workers(1, first_gpu=2))
    await node.started(ends)
    await node.printed(goes_on, b"up")
    await node.heard(RunStarted, goes_on)
    pid = (await node.started(goes_on)).pids["worker-0"]
    await node.down()
    await until(lambda: b"done" in node.log(ends))
    await node.up()
    exited = await node.exit_of(ends)
    assert exited.tasks[0].exit_code == 3
    assert not exited.lost
    assert process_tree.is_alive(pid)
    await node.stop(goes_on)
    assert (await node.exit_of(goes_on)).tasks[0].signal == signal.SIGTERM
    await node.start(prepared)
    assert (await node.exit_of(prepared)).tasks[0].exit_code == 0
    inventories = [m for m in await node.inputs() if isinstance(m, InventoryReported)]
    assert {run.run_id for run in inventories[-1].runs} >= {goes_on, prepared}
    for run_id in (ends, goes_on, prepared):
        assert len(await node.all_heard(RunExited, run_id)) == 1


async def test_a_run_whose_supervisor_died_with_the_launcher_is_lost(node, loaders):
    run_id = await node.run(loaders)
    pids = await all_up(node, run_id)
    marked = node.processes(run_id)
    await node.down()
    os.kill(node.supervisor_of(run_id), signal.SIGKILL)
    await node.up()
    assert (await node.exit_of(run_id)).lost
    assert alive(marked) == []
    process_tree.signal_all(alive(pids), signal.SIGKILL)


async def test_a_killed_spawner_is_replaced_and_kills_nothing(node):
    running = await node.run("echo up; sleep 60")
    await node.printed(running, b"up")
    before = process_tree.descendants(os.getpid())
    spawner = next(pid for pid in before if b"launcher.spawner" in command_line(pid))
    os.kill(spawner, signal.SIGKILL)
    later = await node.run("echo later", workers(1, first_gpu=1))
    assert (await node.exit_of(later)).tasks[0].exit_code == 0
    assert await node.all_heard(RunExited, running) == []
    await node.stop(running)
    assert not (await node.exit_of(running)).lost


async def test_a_launcher_told_to_stop_its_runs_leaves_no_process(tmp_path):
    node = Node(tmp_path, on_exit="stop")
    await node.up()
    running = await node.run("echo up; sleep 60")
    waiting = await node.prepare("echo never", workers(1, first_gpu=1))
    await node.printed(running, b"up")
    children = set(process_tree.descendants(os.getpid()))
    await node.down()
    exited = await node.exit_of(running)
    assert exited.asked is StopReason.SHUTDOWN
    assert exited.tasks[0].signal == signal.SIGTERM
    assert (await node.exit_of(waiting)).asked is StopReason.SHUTDOWN
    await until(lambda: not alive(children))


async def test_tasks_stop_when_the_lease_is_over_and_nothing_starts_then(tmp_path):
    node = Node(tmp_path, lease_ms=400, lease_grace_ms=300)
    await node.up()
    run_id = await node.run("trap '' TERM; echo up; sleep 60")
    waiting = await node.prepare("echo never", workers(1, first_gpu=1))
    await node.printed(run_id, b"up")
    pid = (await node.started(run_id)).pids["worker-0"]
    node.launcher_bus.disconnect()
    await until(lambda: not process_tree.is_alive(pid))
    await asyncio.sleep(0)
    node.launcher_bus.reconnect()
    exited = await node.exit_of(run_id)
    assert exited.asked is StopReason.LEASE
    assert (await node.exit_of(waiting)).asked is StopReason.LEASE
    await node.down()
