"""A supervisor whose run has ended with nothing left sees to the next run, as a new one would."""

import os
import signal
from pathlib import Path

import pytest

from broker.schemas.run import RunExited, StopReason
from launcher import process_tree
from tests.process.launcher.support import Node, until, workers

pytestmark = pytest.mark.process

IDLE_FILES = 5
"""Three streams, the channel to the spawner and the control pipe."""


async def over(node: Node, run: object = "true", *, gpu: int = 0, **spec: object) -> int:
    """Have a run end, and return the process id of its supervisor."""
    run_id = await node.run(run, workers(1, first_gpu=gpu), **spec)
    await node.exit_of(run_id)
    supervisor = node.supervisor_of(run_id)
    await idle(supervisor)
    return supervisor


async def idle(supervisor: int) -> None:
    """Wait until the process waits for its next run, or is gone: no more files are open then."""
    await until(lambda: len(files_of(supervisor)) in (0, IDLE_FILES))


def files_of(pid: int) -> list[str]:
    try:
        return sorted(str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return []


def folder_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/cwd").readlink())


def caught_by(pid: int) -> int:
    """The signals for which the process has handlers, as a mask."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("SigCgt")), 16)


async def test_runs_of_every_kind_leave_no_trace_in_their_supervisor(node, tmp_path):
    first = await over(node)
    open_files, signals = files_of(first), caught_by(first)
    others = [
        await over(node, "exit 3", workdir=str(tmp_path)),
        await over(node, ("no-such-command",)),
        await over(node, "setsid sleep 600 & exit 0", grace="100ms"),
        await over(node, "echo out", workdir="/no/such"),
    ]
    assert set(others) == {first}
    assert len(files_of(first)) == len(open_files)
    assert caught_by(first) == signals
    assert folder_of(first) == "/"
    run_id = await node.run("echo up; sleep 60")
    await node.printed(run_id, b"up")
    assert node.supervisor_of(run_id) == first
    await node.stop(run_id)
    exited = await node.exit_of(run_id)
    assert exited.asked is StopReason.CANCEL
    assert exited.tasks[0].signal == signal.SIGTERM


async def test_a_plan_swallowed_by_a_dying_idle_supervisor_is_carried_out_by_another(node):
    supervisor = await over(node)
    os.kill(supervisor, signal.SIGSTOP)
    run_id = await node.run("echo once")
    assert await over(node, gpu=1) != supervisor
    assert node.processes(run_id) == []
    os.kill(supervisor, signal.SIGKILL)
    exited = await node.exit_of(run_id)
    assert [task.exit_code for task in exited.tasks] == [0]
    assert node.log(run_id) == b"once\n"
    assert node.supervisor_of(run_id) != supervisor
    assert len(await node.all_heard(RunExited, run_id)) == 1


async def test_a_supervisor_told_to_terminate_sees_to_no_other_run(node):
    run_id = await node.run("echo up; sleep 60")
    await node.printed(run_id, b"up")
    told = node.supervisor_of(run_id)
    os.kill(told, signal.SIGTERM)
    await node.exit_of(run_id)
    assert await over(node) != told
    assert not process_tree.is_alive(told)


async def test_the_end_of_a_killed_supervisor_is_noticed_without_a_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr("launcher.service._SWEEP_MS", 600_000)
    node = Node(tmp_path)
    await node.up()
    run_id = await node.run("echo up; sleep 60")
    await node.printed(run_id, b"up")
    await node.started(run_id)
    os.kill(node.supervisor_of(run_id), signal.SIGKILL)
    exited = await node.heard(RunExited, run_id)
    assert exited.lost
    assert node.processes(run_id) == []
    await node.down()


async def test_idle_supervisors_end_with_the_launcher_and_busy_ones_after_their_run(node):
    idle_one = await over(node)
    run_id = await node.run("echo up; sleep 0.5")
    await node.printed(run_id, b"up")
    busy_one = node.supervisor_of(run_id)
    assert busy_one == idle_one
    await node.down()
    assert process_tree.is_alive(busy_one)
    await until(lambda: not process_tree.is_alive(busy_one))
    await node.up()
    assert (await node.exit_of(run_id)).tasks[0].exit_code == 0
    last = await over(node)
    await node.down()
    await until(lambda: not process_tree.is_alive(last))
