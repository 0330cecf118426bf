"""Nodes join, fall silent, are lost, leave, restart; GPUs break; what becomes of the runs there."""

import pytest

from broker.schemas.command import PreemptRun, StopRun
from broker.schemas.fact import GpuChanged, NodeCordoned, NodeDown, NodeUp
from broker.schemas.job import JobCancelRequested
from broker.schemas.node import (
    GpuFaultReason,
    GpuHealthChanged,
    GpuInfo,
    NodeCordonRequested,
    NodeHeard,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSilent,
    NodeUncordonRequested,
)
from broker.schemas.run import InventoryReported, LauncherLeft, RunExited, StopReason
from tests.unit.scheduler_svc.mesh import Mesh


def states_told(mesh, node="a"):
    return [fact.state for fact in mesh.kinds([NodeDown]) if fact.node == node]


def test_a_node_takes_runs_when_agent_and_launcher_are_there_in_either_order():
    mesh = Mesh()
    job = mesh.submit()
    mesh.send(InventoryReported(node="a", boot_id="boot-1"))
    assert (mesh.state(job), mesh.node("a").state) == ("QUEUED", "left")
    mesh.send(
        NodeJoined(node="a", boot_id="boot-1", host="h", gpus=(GpuInfo(gpu_id="g", index=0),))
    )
    assert mesh.state(job) == "RUNNING"
    assert [(fact.node, fact.gpus) for fact in mesh.kinds([NodeUp])] == [("a", 1)]


def test_without_its_launcher_a_node_says_what_is_missing():
    mesh = Mesh({"a": 1})
    running = mesh.submit()
    mesh.send(LauncherLeft(node="a"))
    waiting = mesh.submit()
    assert mesh.node("a").problem == "its launcher is not running"
    assert (mesh.state(running), mesh.view(waiting).reason) == ("RUNNING", "NodesCordoned")


def test_a_node_without_gpus_says_why():
    mesh = Mesh()
    mesh.send(NodeJoined(node="a", boot_id="b", host="h", problem="NVML: driver not loaded"))
    assert mesh.node("a").problem == "NVML: driver not loaded"
    assert mesh.kinds([NodeUp])[0].problem == "NVML: driver not loaded"


def test_runs_of_a_silent_node_are_unknown_until_it_is_heard_again():
    mesh = Mesh({"a": 1, "b": 1})
    job = mesh.submit(2)
    mesh.send(NodeSilent(node="a", silent_ms=6_000))
    assert mesh.state(job) == "UNKNOWN"
    assert mesh.core.explain(job).state == "UNKNOWN"
    mesh.send(NodeSilent(node="a", silent_ms=7_000))
    mesh.send(NodeHeard(node="a"))
    assert (mesh.state(job), states_told(mesh)) == ("RUNNING", ["silent"])
    assert mesh.core.explain(job).story[-1].endswith("node a is heard again")


def test_service_of_a_run_on_a_silent_node_goes_on():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.send(NodeSilent(node="a", silent_ms=6_000))
    mesh.advance(100)
    mesh.send(NodeHeard(node="a"))
    assert mesh.view(job).attained_gpu_ms == 100


@pytest.mark.parametrize("word", [NodeHeard(node="a"), NodeSilent(node="x", silent_ms=1)])
def test_words_about_nodes_that_are_up_or_unknown_change_nothing(word):
    mesh = Mesh({"a": 1})
    count = len(mesh.outputs)
    mesh.send(word)
    assert len(mesh.outputs) == count


def test_a_silent_node_that_joins_again_or_leaves_is_not_silent_any_more():
    for word in ("join", "leave"):
        mesh = Mesh({"a": 1})
        job = mesh.submit()
        mesh.send(NodeSilent(node="a", silent_ms=6_000))
        if word == "join":
            mesh.join("a", 1)
        else:
            mesh.send(NodeLeft(node="a"))
        assert mesh.state(job) == "RUNNING", word


def test_a_lost_node_is_used_again_only_when_its_launcher_has_reported():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.send(NodeLost(node="a", silent_ms=60_000))
    mesh.send(NodeLost(node="a", silent_ms=61_000))
    assert states_told(mesh) == ["lost"]
    mesh.advance(5_000)
    mesh.send(NodeHeard(node="a"))
    assert (mesh.node("a").state, mesh.state(job)) == ("up", "QUEUED")
    mesh.send(InventoryReported(node="a", boot_id="boot-1"))
    assert mesh.state(job) == "RUNNING"


def test_on_a_node_whose_agent_left_runs_go_on_and_nothing_starts():
    mesh = Mesh({"a": 2})
    job = mesh.submit()
    mesh.send(NodeLeft(node="a"))
    mesh.send(NodeLeft(node="a"))
    assert mesh.states(job, mesh.submit()) == ["RUNNING", "QUEUED"]
    assert states_told(mesh) == ["left"]
    mesh.finish(job)
    assert mesh.state(job) == "SUCCEEDED"


def test_after_a_restart_of_the_machine_nothing_of_before_runs():
    mesh = Mesh({"a": 1, "b": 1})
    gang = mesh.submit(2)
    mesh.deaf = {"a", "b"}
    mesh.send(NodeSilent(node="a", silent_ms=6_000))
    mesh.send(
        NodeJoined(node="a", boot_id="boot-2", host="h", gpus=(GpuInfo(gpu_id="a-gpu0", index=0),))
    )
    assert mesh.state(gang) == "STOPPING"
    mesh.exit(f"{gang}-1", "b", code=None, signal=15, asked=StopReason.PEER_FAILED)
    assert mesh.view(gang).runs[0].message == "machine a restarted"
    assert not mesh.core._world.cluster.node("a").is_whole


def test_the_first_join_of_a_known_launcher_is_no_restart():
    mesh = Mesh()
    mesh.send(InventoryReported(node="a", boot_id="boot-1"))
    mesh.join("a", 1)
    assert mesh.state(mesh.submit()) == "RUNNING"


def fault(reason, gpu=0, node="a", detail=""):
    return GpuHealthChanged(node=node, gpu_id=f"{node}-gpu{gpu}", reason=reason, detail=detail)


def test_a_job_on_a_gpu_that_fails_may_save_and_restarts_elsewhere_at_no_fault_of_its_own():
    mesh = Mesh({"a": 2, "b": 1})
    job = mesh.submit(1)
    other = mesh.submit(1, name="other")
    place = mesh.view(job).placement
    assert place == {"b": ("b-gpu0",)}
    mesh.send(fault(GpuFaultReason.XID, node="b", detail="79"))
    assert [c.node for c in mesh.kinds([PreemptRun])] == ["b"]
    view = mesh.view(job)
    assert (view.node_losses, view.failures, view.reason) == (1, 0, "Backoff")
    assert view.runs[0].message == "GPU b-gpu0 of b: Xid 79"
    mesh.advance(1_000)
    assert mesh.states(job, other) == ["RUNNING", "RUNNING"]
    assert mesh.node("b").unhealthy == {"b-gpu0": GpuFaultReason.XID}
    assert mesh.node("b").details == {"b-gpu0": "79"}


def test_a_gpu_that_comes_back_is_used_again_and_the_same_news_twice_is_none():
    mesh = Mesh({"a": 1})
    for _ in range(2):
        mesh.send(fault(GpuFaultReason.ECC))
    job = mesh.submit()
    assert (mesh.state(job), mesh.view(job).reason) == ("QUEUED", "NodesCordoned")
    mesh.send(fault(None))
    assert mesh.state(job) == "RUNNING"
    assert mesh.node("a").details == {}
    assert [fact.reason for fact in mesh.kinds([GpuChanged])] == [GpuFaultReason.ECC, None]


def test_faults_of_unknown_gpus_and_nodes_are_dropped():
    mesh = Mesh({"a": 1})
    mesh.send(fault(GpuFaultReason.ECC, gpu=7))
    mesh.send(fault(GpuFaultReason.ECC, node="x"))
    assert mesh.kinds([GpuChanged]) == []


def test_a_fault_where_the_run_is_over_already_stops_nobody():
    mesh = Mesh({"a": 1, "b": 1})
    job = mesh.submit(2)
    mesh.exit(f"{job}-1", "a", code=0)
    mesh.send(fault(GpuFaultReason.XID))
    assert mesh.state(job) == "RUNNING"
    mesh.exit(f"{job}-1", "b", code=0)
    assert mesh.state(job) == "SUCCEEDED"


def test_a_gpu_missing_at_the_next_start_of_the_agent_stops_its_run():
    mesh = Mesh({"a": 2})
    job = mesh.submit(2)
    mesh.join("a", 1)
    assert mesh.view(job).runs[0].message == "GPU a-gpu1 of a is gone"
    assert [gpu.gpu_id for gpu in mesh.node("a").gpus] == ["a-gpu0"]
    mesh.advance(1_000)
    assert mesh.view(job).reason == "NoNodeEverFits"


def test_a_cordoned_node_keeps_its_runs_and_gets_no_new_ones():
    mesh = Mesh({"a": 2})
    job = mesh.submit()
    for _ in range(2):
        mesh.send(NodeCordonRequested(node="a", user="root", note="fan"))
    assert mesh.states(job, mesh.submit()) == ["RUNNING", "QUEUED"]
    assert (mesh.node("a").cordoned, mesh.node("a").note) == (True, "fan")
    mesh.send(NodeUncordonRequested(node="a", user="root"))
    mesh.send(NodeCordonRequested(node="x", user="root"))
    assert [fact.cordoned for fact in mesh.kinds([NodeCordoned])] == [True, False]
    assert mesh.node("a").note == ""


def test_a_job_lost_while_it_stops_for_a_cancel_is_cancelled():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.deaf.add("a")
    mesh.send(JobCancelRequested(job_id=job, user="ann"))
    mesh.send(NodeLost(node="a", silent_ms=60_000))
    assert mesh.state(job) == "CANCELLED"
    assert [stop.reason for stop in mesh.kinds([StopRun])] == [StopReason.CANCEL]


def test_gpus_with_leftover_processes_are_out_of_use_until_told_otherwise():
    mesh = Mesh({"a": 1})
    job = mesh.submit()
    mesh.send(RunExited(node="a", run_id=f"{job}-1", lost=True, leftover_pids=(7, 8)))
    (changed,) = mesh.kinds([GpuChanged])
    assert (changed.reason, changed.detail) == (
        GpuFaultReason.DIRTY,
        f"processes 7, 8 of {job}-1 remain",
    )
    mesh.advance(1_000)
    assert mesh.view(job).reason == "NodesCordoned"
    mesh.send(fault(None))
    assert mesh.state(job) == "RUNNING"
