"""`node`: what nodes have, who has it, and taking them out of use."""

import json

import msgspec

from broker import codec, subjects, topology
from broker.schemas.node import GpuFaultReason, GpuInfo
from broker.schemas.views import NodeView
from tests.unit.cli.support import call, node

GPUS = tuple(GpuInfo(gpu_id=f"GPU-{n}", index=n, model="H100") for n in range(3))
VIEW = node(
    gpus=GPUS, owners={"GPU-0": "7-1"}, unhealthy={"GPU-1": GpuFaultReason.XID}, note="loud"
)


def act_on(cluster, verb, *, cordoned):
    async def answer(bus, message):
        request = json.loads(message.data)
        entry = await bus.kv_get(topology.NODES, request["node"])
        view = msgspec.structs.replace(codec.decode(NodeView, entry.data), cordoned=cordoned)
        await bus.kv_put(topology.NODES, view.node, codec.encode(view))

    cluster.answers[subjects.operator_input("ada", verb)] = answer


def test_ls_counts_used_free_and_broken_gpus(cluster, capsys):
    cluster.put_node(VIEW)
    assert call("node", "ls") == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["node-0", "up", "3", "1", "1", "1", "H100", "127.0.0.1", "loud"]
    assert call("node", "ls", "-o", "name") == 0
    assert capsys.readouterr().out == "node-0\n"


def test_show_tells_each_gpu(cluster, capsys):
    cluster.put_node(VIEW)
    assert call("node", "show", "node-0") == 0
    rows = [line.split()[-2:] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert rows == [["used", "7-1"], ["Xid", "-"], ["free", "-"]]
    assert call("node", "show", "node-0", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["unhealthy"] == {"GPU-1": "Xid"}


def test_a_node_that_is_not_there_exits_3_with_those_that_are(cluster, capsys):
    assert call("node", "show", "node-9") == 3
    cluster.put_node(VIEW)
    assert call("node", "cordon", "node-9") == 3
    assert "nodes: node-0" in capsys.readouterr().err
    assert cluster.inputs() == []


def test_cordon_and_uncordon_return_when_they_are_true(cluster, capsys):
    cluster.put_node(VIEW)
    act_on(cluster, "cordon", cordoned=True)
    act_on(cluster, "uncordon", cordoned=False)
    assert call("node", "cordon", "node-0", "--note", "fan") == 0
    assert call("node", "uncordon", "node-0") == 0
    assert capsys.readouterr().out == "node node-0 is cordoned\nnode node-0 is uncordoned\n"
    decoded = [
        codec.decode_input(subject, json.dumps(request).encode())
        for subject, request, _ in cluster.inputs()
    ]
    assert [(message.node, message.user) for message in decoded] == [("node-0", "ada")] * 2


def test_a_cordon_that_nobody_does_exits_7(cluster, capsys, monkeypatch):
    monkeypatch.setattr("cli.nodes.CORDON_TIMEOUT_S", 0.05)
    cluster.put_node(VIEW)
    assert call("node", "cordon", "node-0") == 7
    assert "is a scheduler running?" in capsys.readouterr().err


def test_no_nodes_is_told(cluster, capsys):
    assert call("node", "ls") == 0
    assert "no node has joined" in capsys.readouterr().err
