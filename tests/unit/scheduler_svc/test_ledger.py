"""A launcher's own ledger of GPUs is right: runs nobody knows are believed, and stopped."""

from broker.schemas.command import StopRun
from broker.schemas.node import GpuFaultReason, NodeLost
from broker.schemas.run import (
    InventoryReported,
    PrepareRefusal,
    RunExited,
    RunPrepareRefused,
    RunReport,
    StopReason,
)
from tests.unit.scheduler_svc.mesh import Mesh


def busy(job, node, attempt=1, **owners):
    return RunPrepareRefused(
        node=node,
        run_id=f"{job}-{attempt}",
        reason=PrepareRefusal.GPU_BUSY,
        owners={f"{node}-{gpu}": run_id for gpu, run_id in owners.items()},
    )


def refused(nodes, workers=1):
    """A mesh whose node a said that run 9-9 owns its GPU."""
    mesh = Mesh(nodes)
    mesh.deaf = set(nodes)
    job = mesh.submit(workers)
    mesh.unheard.clear()
    mesh.deaf = {"a"}
    mesh.send(busy(job, "a", gpu0="9-9"))
    return mesh, job


def test_a_gpu_owned_by_a_run_nobody_knows_is_left_alone_and_the_run_stopped():
    mesh, job = refused({"a": 1})
    assert mesh.node("a").owners == {"a-gpu0": "9-9"}
    stops = [(s.run_id, s.reason) for s in mesh.kinds([StopRun])]
    assert stops == [("9-9", StopReason.UNKNOWN_RUN)]
    mesh.advance(60_000)
    assert (mesh.state(job), mesh.view(job).reason) == ("QUEUED", "Resources")
    assert mesh.view(job).attempts == 1


def test_a_gang_over_several_nodes_believes_it_too():
    mesh, job = refused({"a": 1, "b": 1}, workers=2)
    mesh.send(RunExited(node="b", run_id=f"{job}-1", asked=StopReason.ABORT))
    mesh.advance(60_000)
    assert (mesh.state(job), mesh.view(job).attempts) == ("QUEUED", 1)
    assert mesh.node("a").owners == {"a-gpu0": "9-9"}


def test_the_gpu_is_free_when_the_foreign_run_is_over():
    mesh, job = refused({"a": 1})
    mesh.deaf.clear()
    mesh.send(RunExited(node="a", run_id="9-9"))
    mesh.advance(1_000)
    assert mesh.state(job) == "RUNNING"


def test_the_gpu_is_free_when_its_launcher_no_longer_lists_the_run():
    mesh, job = refused({"a": 1})
    runs = (RunReport(run_id="9-9", phase="running"),)
    mesh.send(InventoryReported(node="a", boot_id="boot-1", runs=runs))
    assert mesh.node("a").owners == {"a-gpu0": "9-9"}
    mesh.send(InventoryReported(node="a", boot_id="boot-1"))
    assert mesh.node("a").owners == {}
    assert mesh.state(job) == "QUEUED"


def test_a_lost_node_holds_no_foreign_runs():
    mesh, _ = refused({"a": 1})
    mesh.send(NodeLost(node="a", silent_ms=60_000))
    assert mesh.node("a").owners == {}


def test_a_foreign_run_with_leftover_processes_leaves_a_dirty_gpu():
    mesh, _ = refused({"a": 2})
    mesh.send(RunExited(node="a", run_id="9-9", leftover_pids=(5,)))
    assert mesh.node("a").unhealthy == {"a-gpu0": GpuFaultReason.DIRTY}
    assert mesh.node("a").owners == {}


def test_owners_that_are_known_or_gpus_that_are_not_change_nothing():
    mesh = Mesh({"a": 2})
    known = mesh.submit(1)
    mesh.deaf.add("a")
    job = mesh.submit(1)
    mesh.send(busy(job, "a", gpu0=f"{known}-1", gpu7="9-9"))
    assert mesh.node("a").owners == {"a-gpu0": f"{known}-1"}
