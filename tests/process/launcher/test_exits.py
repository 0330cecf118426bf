"""How tasks end, and what is reported of it."""

import signal
import sys

import pytest

from broker.codec import decode_output
from broker.schemas.command import TaskPlacement
from broker.schemas.job import CheckpointSpec
from broker.schemas.run import RunExited, RunPrepared, RunStarted, StopReason
from broker.topology import DECISIONS
from tests.process.launcher.support import NODE, workers

pytestmark = pytest.mark.process

IGNORE_TERM = "trap '' TERM; echo up; sleep 60 & wait; sleep 60"
SAVER = (
    "import signal, sys, time\n"
    "def save(*_):\n"
    "    time.sleep(0.3); print('saved', flush=True); sys.exit(75)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('up', flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.mark.parametrize(
    ("run", "exit_code", "signal_number"),
    [
        ("true", 0, None),
        ("false", 1, None),
        ("exit 3", 3, None),
        ("false | cat", 1, None),
        ("echo $UNSET_VARIABLE", 1, None),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"), None, signal.SIGSEGV),
        (("true",), 0, None),
        (("no-such-command",), 127, None),
        (("/",), 126, None),
    ],
)
async def test_the_recorded_exit_is_that_of_the_command(node, run, exit_code, signal_number):
    run_id = await node.run(run)
    exited = await node.exit_of(run_id)
    (task,) = exited.tasks
    assert (task.task, task.exit_code, task.signal) == ("worker-0", exit_code, signal_number)
    assert not task.stopped_by_us
    assert exited.asked is None
    assert not exited.lost


@pytest.mark.parametrize(
    ("spec", "code", "line"),
    [
        ({"run": ("no-such-command",)}, 127, b"cannot run 'no-such-command': no such file"),
        ({"run": ("true", "a\0b")}, 126, b"cannot run 'true': embedded null byte"),
        ({"run": "true", "workdir": "/no/such"}, 126, b"cannot enter workdir '/no/such'"),
        ({"run": ("true", "x" * 140_000)}, 126, b"argument list too long; Linux takes 128 KiB"),
        (
            {"run": "true", "checkpoint": CheckpointSpec(dir="/dev/null/x")},
            126,
            b"cannot create the checkpoint folder",
        ),
    ],
)
async def test_what_cannot_be_started_fails_the_job_with_a_line_in_its_log(node, spec, code, line):
    run_id = await node.run(**spec)
    exited = await node.exit_of(run_id)
    assert [task.exit_code for task in exited.tasks] == [code]
    assert node.log(run_id).startswith(b"tiresias: ")
    assert line in node.log(run_id)


async def test_a_gang_of_which_no_task_can_be_started_ends_with_an_exit_each(node):
    run_id = await node.run(("no-such-command",), workers(2))
    exited = await node.exit_of(run_id)
    assert [(task.exit_code, task.signal) for task in exited.tasks] == [(127, None)] * 2
    assert exited.asked is None
    assert (await node.started(run_id)).pids == {}


async def test_a_failed_rank_stops_the_others_which_ignore_the_request(node):
    script = f'if [ "$RANK" = 2 ]; then sleep 0.3; exit 1; fi; {IGNORE_TERM}'
    run_id = await node.run(script, workers(4), grace="500ms")
    exited = await node.exit_of(run_id)
    by_rank = {task.rank: task for task in exited.tasks}
    assert (by_rank[2].exit_code, by_rank[2].stopped_by_us) == (1, False)
    for rank in (0, 1, 3):
        assert (by_rank[rank].signal, by_rank[rank].stopped_by_us) == (signal.SIGKILL, True)
    assert exited.asked is None
    assert node.processes(run_id) == []


async def test_the_end_of_the_chief_ends_its_servers(node):
    tasks = (
        *workers(1),
        TaskPlacement(role="chief", index=0, rank=1, node=NODE),
        TaskPlacement(role="ps", index=0, rank=2, node=NODE),
    )
    script = 'echo "$TF_CONFIG"; if [ "$TIRESIAS_ROLE" = chief ]; then sleep 0.5; else sleep 60; fi'
    run_id = await node.run(script, tasks)
    exited = await node.exit_of(run_id)
    outcome = {task.task: (task.exit_code, task.signal) for task in exited.tasks}
    assert outcome["chief-0"] == (0, None)
    assert outcome["worker-0"] == outcome["ps-0"] == (None, signal.SIGTERM)
    assert b'"task": {"type": "ps", "index": 0}' in node.log(run_id, "ps-0")


async def test_workers_without_a_chief_all_have_to_finish(node):
    run_id = await node.run('[ "$RANK" = 0 ] || sleep 0.3; echo done', workers(2))
    exited = await node.exit_of(run_id)
    assert [task.exit_code for task in exited.tasks] == [0, 0]
    assert not any(task.stopped_by_us for task in exited.tasks)


@pytest.mark.parametrize("through_shell", [False, True])
async def test_preemption_waits_for_the_save_and_hears_of_it(node, through_shell, tmp_path):
    program = tmp_path / "saver.py"
    program.write_text(SAVER)
    command = (sys.executable, str(program))
    run_id = await node.run(
        f"echo wrapped; {' '.join(command)}; echo never" if through_shell else command
    )
    await node.printed(run_id, b"up")
    await node.preempt(run_id)
    exited = await node.exit_of(run_id)
    assert [(task.exit_code, task.stopped_by_us) for task in exited.tasks] == [(75, True)]
    assert exited.asked is StopReason.PREEMPT
    assert 300 <= exited.ask_to_exit_ms < 5_000
    assert node.log(run_id).endswith(b"saved\n")


async def test_a_child_of_a_shell_killed_by_the_request_may_finish_its_save(node, tmp_path):
    program = tmp_path / "saver.py"
    program.write_text(SAVER)
    script = tmp_path / "train.sh"
    script.write_text(f"{sys.executable} {program}\necho never\n")
    run_id = await node.run(("bash", str(script)))
    await node.printed(run_id, b"up")
    await node.preempt(run_id)
    exited = await node.exit_of(run_id)
    assert [task.signal for task in exited.tasks] == [signal.SIGTERM]
    assert node.log(run_id).endswith(b"saved\n")


async def test_a_task_that_ignores_the_request_is_killed_at_the_grace_and_not_before(node):
    run_id = await node.run(IGNORE_TERM)
    await node.printed(run_id, b"up")
    await node.preempt(run_id, grace_ms=700)
    exited = await node.exit_of(run_id)
    assert [task.signal for task in exited.tasks] == [signal.SIGKILL]
    assert 700 <= exited.ask_to_exit_ms < 3_000


async def test_of_several_requests_the_earliest_deadline_holds(node):
    run_id = await node.run(IGNORE_TERM)
    await node.printed(run_id, b"up")
    await node.preempt(run_id, grace_ms=60_000)
    await node.stop(run_id, StopReason.CANCEL, grace_ms=200)
    exited = await node.exit_of(run_id)
    assert exited.asked is StopReason.PREEMPT
    assert exited.ask_to_exit_ms < 5_000


async def test_a_plain_script_dies_of_the_request(node):
    run_id = await node.run("echo up; sleep 60; echo never")
    await node.printed(run_id, b"up")
    await node.stop(run_id)
    exited = await node.exit_of(run_id)
    assert [(task.exit_code, task.signal) for task in exited.tasks] == [(None, signal.SIGTERM)]
    assert exited.asked is StopReason.CANCEL


async def test_a_run_cancelled_before_its_start_ends_without_tasks(node):
    run_id = await node.prepare("echo never")
    await node.heard(RunPrepared, run_id)
    await node.stop(run_id)
    exited = await node.exit_of(run_id)
    assert exited.tasks == ()
    assert exited.asked is StopReason.CANCEL
    again = await node.run("true")
    assert (await node.exit_of(again)).tasks[0].exit_code == 0


async def test_a_cancel_right_after_the_start_leaves_nothing(node):
    run_id = await node.prepare(IGNORE_TERM)
    await node.start(run_id)
    await node.stop(run_id, grace_ms=0)
    exited = await node.exit_of(run_id)
    assert exited.asked is StopReason.CANCEL
    assert node.processes(run_id) == []


async def test_commands_delivered_again_do_nothing_twice(node):
    run_id = await node.prepare("echo once; sleep 60")
    prepared = await node.heard(RunPrepared, run_id)
    commands = [message async for message in _commands(node)]
    await node.start(run_id)
    await node.start(run_id)
    await node.started(run_id)
    await node.printed(run_id, b"once")
    for command in commands:
        await node.send(command)
    await node.stop(run_id, StopReason.PEER_FINISHED)
    await node.stop(run_id, StopReason.PEER_FINISHED)
    await node.exit_of(run_id)
    await node.start(run_id)
    await node.stop(run_id)
    probe = await node.run("true")
    await node.exit_of(probe)
    assert len(await node.all_heard(RunExited, run_id)) == 1
    assert len(await node.all_heard(RunStarted, run_id)) == 1
    assert await node.all_heard(RunPrepared, run_id) == [prepared]
    assert node.log(run_id).count(b"once") == 1


async def _commands(node):
    state = await node.bus.stream_state(DECISIONS)
    async for message in node.bus.read_until(DECISIONS, from_seq=1, last_seq=state.last_seq):
        yield decode_output(message.subject, message.data)
