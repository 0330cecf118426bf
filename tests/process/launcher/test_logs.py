"""Logs hold every byte that was printed, while it runs and afterwards."""

import array
import os
import socket
import sys

import pytest

from broker.schemas.run import RunPrepared
from launcher.core.task_plan import LogLimits
from tests.process.launcher.support import Node, until, workers

pytestmark = pytest.mark.process

LINES = "import sys; sys.stdout.write('\\n'.join(map(str, range(10_000)))); sys.exit({})"
EXPECTED = "\n".join(map(str, range(10_000))).encode()


@pytest.mark.parametrize("exit_code", [0, 1])
async def test_ten_thousand_lines_without_a_last_newline_arrive_whole(node, exit_code):
    for _ in range(5):
        run_id = await node.prepare((sys.executable, "-c", LINES.format(exit_code)))
        await node.start(run_id)
        await node.started(run_id)
        assert await node.follow(run_id) == EXPECTED
        assert node.log(run_id) == EXPECTED
        assert (await node.exit_of(run_id)).tasks[0].exit_code == exit_code


async def test_output_and_errors_keep_their_order(node):
    run_id = await node.run("echo one; echo two >&2; echo three; printf last")
    await node.exit_of(run_id)
    assert await node.follow(run_id) == b"one\ntwo\nthree\nlast"


async def test_bytes_are_not_interpreted(node):
    run_id = await node.run(r"printf '\xff\x00\xc3'")
    assert await follow_from_start(node, run_id) == b"\xff\x00\xc3"


async def test_a_rotated_log_is_read_by_offset_and_its_oldest_part_is_dropped(tmp_path):
    node = Node(tmp_path, log_limits=LogLimits(segment_bytes=10_000, segments=3))
    await node.up()
    run_id = await node.run((sys.executable, "-c", LINES.format(0)))
    await node.exit_of(run_id)
    first = await node.read_log(run_id)
    assert first.offset == 20_000
    text, offset = b"", first.offset
    while not (chunk := await node.read_log(run_id, offset)).final:
        text += chunk.data
        offset = chunk.next_offset
    text += chunk.data
    assert text == EXPECTED[20_000:]
    assert len(list((node.config.runs_dir / run_id).glob("worker-0.log*"))) == 3
    await node.down()


async def test_a_reader_is_told_what_is_wrong(node):
    assert "not known" in (await node.read_log("99-1")).error
    assert "invalid task" in (await node.read_log("99-1", task="../../x")).error


async def test_a_follower_sees_the_end_of_its_task_before_the_run_ends(node):
    run_id = await node.run('[ "$RANK" = 1 ] || { echo bye; exit 0; }; sleep 60', workers(2))
    assert await follow_from_start(node, run_id) == b"bye\n"
    await node.stop(run_id)
    await node.exit_of(run_id)


async def test_the_log_of_a_run_that_never_started_is_empty_and_final(node):
    run_id = await node.prepare("echo never")
    await node.heard(RunPrepared, run_id)
    assert not (await node.read_log(run_id)).final
    await node.stop(run_id)
    await node.exit_of(run_id)
    assert await node.follow(run_id) == b""


async def test_a_process_of_somebody_else_that_holds_the_pipe_does_not_delay_the_end(node):
    """Its descriptor left the run over a socket, so nothing of the run is left."""
    path = node.config.run_dir / "taker.sock"
    taker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    taker.bind(str(path))
    taker.setblocking(False)
    script = (
        "import array, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        f"s.connect({str(path)!r}); fd = array.array('i', [1])\n"
        "s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)]); print('given')"
    )
    run_id = await node.run((sys.executable, "-c", script))
    await until(lambda: b"given" in node.log(run_id))
    _, rights, _, _ = taker.recvmsg(1, socket.CMSG_SPACE(4))
    held = array.array("i", rights[0][2])[0]
    assert (await node.exit_of(run_id)).tasks[0].exit_code == 0
    assert await node.follow(run_id) == b"given\n"
    os.close(held)
    taker.close()


async def follow_from_start(node, run_id) -> bytes:
    await node.started(run_id)
    return await node.follow(run_id)
