"""Ports, environments and long commands."""

import json
import socket
import sys

import pytest

from broker.schemas.run import PrepareRefusal, RunPrepared, RunPrepareRefused
from tests.free_ports import free_ports
from tests.process.launcher.support import Node, workers

pytestmark = pytest.mark.process

BIND = (
    "import os, socket, time; s = socket.socket()\n"
    "port = 0\n"
    "import json; c = json.loads(os.environ['TF_CONFIG'])\n"
    "host = c['cluster']['worker'][c['task']['index']]\n"
    "s.bind(('', int(host.split(':')[1]))); s.listen(); print('bound', host, flush=True)\n"
    "time.sleep(0.3)"
)
SHOW = (
    "import hashlib, json, os, sys\n"
    "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('V_')}))"
)


async def test_ports_taken_by_others_are_passed_over(tmp_path):
    free = free_ports(100)
    outside = [socket.socket() for _ in range(3)]
    for port, listener in zip(free, outside, strict=False):
        listener.bind(("127.0.0.1", port))
        listener.listen()
    node = Node(tmp_path, first_port=free[0], last_port=free[-1])
    await node.up()
    first = await node.run((sys.executable, "-c", BIND), workers(2))
    second = await node.run((sys.executable, "-c", BIND), workers(2, first_gpu=2))
    ports = [
        port
        for run_id in (first, second)
        for port in (await node.heard(RunPrepared, run_id)).ports.values()
    ]
    assert len(set(ports)) == 4
    assert min(ports) > free[2]
    for run_id in (first, second):
        assert [task.exit_code for task in (await node.exit_of(run_id)).tasks] == [0, 0]
    await node.down()
    for listener in outside:
        listener.close()


async def test_a_used_up_range_refuses_by_name(tmp_path):
    first, last = free_ports(2)
    node = Node(tmp_path, first_port=first, last_port=last)
    await node.up()
    holder = await node.prepare("true", workers(2))
    await node.heard(RunPrepared, holder)
    refused = await node.prepare("true", workers(1, first_gpu=2))
    report = await node.heard(RunPrepareRefused, refused)
    assert report.reason is PrepareRefusal.NO_PORTS
    assert f"{first} to {last}" in report.detail
    await node.stop(holder)
    await node.exit_of(holder)
    again = await node.run("true", workers(1, first_gpu=2))
    assert (await node.exit_of(again)).tasks[0].exit_code == 0
    await node.down()


async def test_two_launchers_of_one_machine_give_out_different_ports(tmp_path):
    ports = free_ports(100)
    nodes = [Node(tmp_path / name, first_port=ports[0], last_port=ports[-1]) for name in "ab"]
    given = []
    for node in nodes:
        await node.up()
        run_id = await node.run("sleep 60", workers(2))
        await node.started(run_id)
        given += (await node.heard(RunPrepared, run_id)).ports.values()
    assert len(set(given)) == 4
    for node in nodes:
        await node.stop("1-1")
        await node.exit_of("1-1")
        await node.down()


async def test_a_busy_gpu_is_refused_with_its_owner(node):
    owner = await node.run("sleep 60")
    await node.started(owner)
    refused = await node.prepare("true")
    report = await node.heard(RunPrepareRefused, refused)
    assert report.reason is PrepareRefusal.GPU_BUSY
    assert report.owners == {"GPU-0": owner}
    await node.stop(owner)
    await node.exit_of(owner)
    again = await node.run("true")
    assert (await node.exit_of(again)).tasks[0].exit_code == 0


async def test_a_long_script_and_a_large_environment_arrive_byte_for_byte(node):
    env = {f"V_{i}": f"{i}'\"\n$HOME `x` \\ 🦉" + "é" * 2_000 for i in range(300)}
    padding = "# ünïcode 🦉 \"'$\n" * 10_000
    run_id = await node.run(f'{padding}{sys.executable} -c {json.dumps(SHOW)[0]}{SHOW}"', env=env)
    await node.started(run_id)
    shown = await node.follow(run_id)
    exited = await node.exit_of(run_id)
    assert exited.tasks[0].exit_code == 0, shown[-500:]
    assert json.loads(shown) == env


async def test_each_worker_sees_only_its_gpus_and_cpu_tasks_none(node):
    run_id = await node.run('echo "[${CUDA_VISIBLE_DEVICES-unset}]"', workers(2))
    await node.exit_of(run_id)
    assert node.log(run_id, "worker-0") == b"[GPU-0]\n"
    assert node.log(run_id, "worker-1") == b"[GPU-1]\n"
