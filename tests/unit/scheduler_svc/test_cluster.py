"""Nodes, GPUs and their owners."""

import pytest

from broker.schemas.node import GpuFaultReason, GpuInfo, NodeJoined
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.errors import InvariantError


def joined(*gpu_ids, boot_id="boot-1", **fields):
    gpus = tuple(GpuInfo(gpu_id=gpu_id, index=i) for i, gpu_id in enumerate(gpu_ids))
    return NodeJoined(node="n", boot_id=boot_id, host="10.0.0.1", gpus=gpus, **fields)


def usable(*gpu_ids):
    cluster = Cluster()
    cluster.join(joined(*gpu_ids)).launcher_boot_id = "boot-1"
    return cluster


def test_a_node_takes_runs_only_with_its_agent_and_launcher_and_uncordoned():
    cluster = usable("a", "b")
    node = cluster.node("n")
    assert cluster.usable_gpus() == cluster.obtainable_gpus() == 2
    node.is_cordoned = True
    assert cluster.usable_gpus() == cluster.obtainable_gpus() == 0
    node.is_cordoned, node.launcher_boot_id = False, "boot-0"
    assert not node.is_usable
    node.launcher_boot_id, node.state = "boot-1", "silent"
    assert not node.is_usable


def test_a_gpu_has_one_owner():
    cluster = usable("a", "b")
    cluster.acquire({"n": [["a"]]}, "1-1")
    with pytest.raises(InvariantError, match="GPU 'a' of 'n' is owned by run '1-1'"):
        cluster.acquire({"n": [["b"], ["a"]]}, "2-1")


def test_a_gpu_of_a_foreign_run_is_nobodys_to_have():
    cluster = usable("a", "b")
    cluster.gpu("n", "a").foreign_run = "9-9"
    assert (cluster.usable_gpus(), cluster.obtainable_gpus()) == (2, 1)
    assert not cluster.is_usable("n", "a")
    with pytest.raises(InvariantError, match="owned by run '9-9'"):
        cluster.acquire({"n": [["a"]]}, "1-1")
    cluster.release("9-9", ("n",))
    assert cluster.is_usable("n", "a")


def test_what_does_not_exist_is_not_usable():
    cluster = usable("a")
    assert not cluster.is_usable("n", "b")
    assert not cluster.is_usable("m", "a")


def test_release_frees_only_what_the_run_owns():
    cluster = usable("a", "b")
    cluster.acquire({"n": [["a"]]}, "1-1")
    cluster.acquire({"n": [["b"]]}, "2-1")
    cluster.mark_releasing({"n": [["a"]]})
    cluster.release("1-1", ("n",))
    assert [gpu.owner for gpu in cluster.node("n").gpus.values()] == [None, "2-1"]
    assert not cluster.gpu("n", "a").is_releasing


def test_a_gpu_missing_from_a_newer_inventory_goes_when_its_run_is_over():
    cluster = usable("a", "b")
    cluster.acquire({"n": [["a"]]}, "1-1")
    cluster.join(joined("c"))
    assert list(cluster.node("n").gpus) == ["a", "c"]
    assert not cluster.gpu("n", "a").is_healthy
    cluster.release("1-1", ("n",))
    assert list(cluster.node("n").gpus) == ["c"]


def test_a_new_inventory_brings_faults_and_clears_old_ones():
    cluster = usable("a", "b")
    cluster.gpu("n", "b").fault = GpuFaultReason.ECC
    cluster.join(joined("a", "b", unhealthy={"a": GpuFaultReason.XID}))
    assert cluster.gpu("n", "a").fault is GpuFaultReason.XID
    assert cluster.gpu("n", "b").is_healthy


def test_leftover_processes_outlive_a_restart_of_the_agent_but_not_of_the_machine():
    cluster = usable("a", "b")
    for gpu in cluster.node("n").gpus.values():
        gpu.fault, gpu.fault_detail = GpuFaultReason.DIRTY, "process 7 remains"
    cluster.join(joined("a", "b", unhealthy={"b": GpuFaultReason.LOST}))
    assert cluster.gpu("n", "a").fault is GpuFaultReason.DIRTY
    assert cluster.gpu("n", "a").fault_detail == "process 7 remains"
    assert cluster.gpu("n", "b").fault is GpuFaultReason.LOST
    cluster.join(joined("a", "b", boot_id="boot-2"))
    assert cluster.gpu("n", "a").is_healthy
    assert cluster.gpu("n", "a").fault_detail == ""


def test_a_node_known_only_from_its_launcher_has_left():
    assert Cluster().node("n").state == "left"
