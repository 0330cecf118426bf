"""Which nodes and GPUs a gang gets: consolidated, spread, and close together inside a node."""

import pytest

from broker.schemas.node import GpuInfo
from broker.schemas.operator import Settings
from scheduler_svc.core.cluster import Cluster, Gpu, Node
from scheduler_svc.core.job import Job
from scheduler_svc.core.placement.choose import Fits, is_consolidated, place, shape_of
from scheduler_svc.core.placement.consolidate import consolidate, fewest_nodes
from scheduler_svc.core.placement.spread import spread
from scheduler_svc.core.placement.topology import pick_gpus


def job(workers, gpus_per_worker=1, **fields):
    return Job(job_id=1, workers=workers, gpus_per_worker=gpus_per_worker, **fields)


def cluster(**node_gpus):
    return Cluster(
        {
            name: Node(
                name=name,
                state="up",
                gpus={
                    f"{name}{i}": Gpu(info=GpuInfo(gpu_id=f"{name}{i}", index=i))
                    for i in range(count)
                },
            )
            for name, count in node_gpus.items()
        }
    )


@pytest.mark.parametrize(
    ("slots", "workers", "chosen"),
    [
        ({"a": 4, "b": 2, "c": 3}, 2, {"b": 2}),
        ({"a": 4, "b": 4}, 3, {"a": 3}),
        ({"a": 4, "b": 4, "c": 2, "d": 1}, 6, {"a": 4, "c": 2}),
        ({"a": 1, "b": 3, "c": 2}, 6, {"b": 3, "c": 2, "a": 1}),
        ({"a": 1, "b": 0}, 2, None),
    ],
)
def test_consolidation_takes_the_fewest_nodes_and_the_best_fit(slots, workers, chosen):
    assert consolidate(slots, workers) == chosen
    assert fewest_nodes(slots, workers) == (chosen and len(chosen))


@pytest.mark.parametrize(
    ("slots", "workers", "chosen"),
    [
        ({"a": 4, "b": 1, "c": 2}, 3, {"b": 1, "c": 2}),
        ({"a": 4, "b": 4}, 2, {"a": 2}),
        ({"a": 4, "b": 1}, 5, {"b": 1, "a": 4}),
        ({"a": 0, "b": 1}, 2, None),
    ],
)
def test_spreading_uses_up_fragments_and_keeps_whole_nodes_free(slots, workers, chosen):
    assert spread(slots, workers) == chosen


@pytest.mark.parametrize(
    ("skew", "expected"), [(None, True), (0.39, True), (0.38, False), (0.1, False)]
)
def test_a_job_is_consolidated_if_its_skew_is_above_the_limit_or_unknown(skew, expected):
    assert is_consolidated(job(2, skew=skew), Settings(pack_limit=0.38)) is expected


def test_the_job_file_overrides_how_strictly_the_cluster_consolidates():
    lenient = Settings(consolidate="prefer")
    assert shape_of(job(2), lenient, 1).strictness == (True, False)
    assert shape_of(job(2, consolidate="require"), lenient, 1).strictness == (True,)
    assert shape_of(job(2, consolidate="require", skew=0.0), lenient, 1).strictness == (False,)


def test_a_strict_placement_takes_no_more_than_the_fewest_nodes_of_the_empty_cluster():
    nodes = cluster(a=4, b=4)
    free = {"a": ["a3"], "b": ["b2", "b3"]}
    shape = shape_of(job(3), Settings(), 1)
    assert place(job(3), shape, free, nodes, is_strict=True) is None
    assert place(job(3), shape, free, nodes, is_strict=False) == {
        "a": [["a3"]],
        "b": [["b2"], ["b3"]],
    }


def test_a_worker_with_several_gpus_never_straddles_nodes():
    nodes = cluster(a=3, b=3)
    free = {"a": ["a0", "a1", "a2"], "b": ["b0"]}
    gang = job(2, gpus_per_worker=2, skew=0.0)
    shape = shape_of(gang, Settings(), 2)
    assert place(gang, shape, free, nodes, is_strict=False) is None
    free["b"].append("b2")
    assert place(gang, shape, free, nodes, is_strict=False) == {
        "a": [["a0", "a1"]],
        "b": [["b0", "b2"]],
    }


def test_fits_looks_at_usable_nodes_as_if_nothing_ran():
    nodes = cluster(a=4, b=4, c=4)
    nodes.nodes["c"].is_cordoned = True
    fits = Fits(nodes)
    assert [fits.fewest_nodes(job(n)) for n in (1, 4, 5, 9)] == [1, 1, 2, None]
    assert fits.fewest_nodes(job(2, gpus_per_worker=3)) == 2
    assert fits.fewest_nodes(job(1, gpus_per_worker=5)) is None
    assert fits.fewest_nodes(job(4)) == 1


def test_nodes_wished_for_are_filled_only_if_the_gang_would_fit_with_them():
    fits = Fits(cluster(a=2, b=8, c=8))
    strict = shape_of(job(8, consolidate="require"), Settings(), 1)
    lenient = shape_of(job(8), Settings(consolidate="prefer"), 1)
    assert fits.fill(job(8), strict, ["a", "c", "b"]) == {"c": 8}
    assert fits.fill(job(8), lenient, ["a", "c", "b"]) == {"a": 2, "c": 6}
    strict = shape_of(job(10, consolidate="require"), Settings(), 2)
    assert fits.fill(job(10), strict, ["a", "c", "b"]) == {"a": 2, "c": 8}


def topology(*gpus):
    return Node(name="n", gpus={info.gpu_id: Gpu(info=info) for info in gpus})


def gpu(index, **fields):
    return GpuInfo(gpu_id=f"g{index}", index=index, **fields)


def test_one_gpu_is_the_first_free_one():
    assert pick_gpus(topology(gpu(0), gpu(1)), ["g1", "g0"], 1, 1) == [["g1"]]


def test_gpus_of_a_worker_share_nvlink_before_a_switch_before_a_numa_node():
    node = topology(
        gpu(0, numa_node=0, pcie_switch="s0"),
        gpu(1, numa_node=1, pcie_switch="s1", nvlink_peers=("g3",)),
        gpu(2, numa_node=0, pcie_switch="s0"),
        gpu(3, numa_node=0, pcie_switch="s2", nvlink_peers=("g1",)),
    )
    assert pick_gpus(node, ["g0", "g1", "g2", "g3"], 1, 2) == [["g1", "g3"]]
    assert pick_gpus(node, ["g0", "g1", "g2"], 1, 2) == [["g0", "g2"]]
    assert pick_gpus(node, ["g0", "g1", "g3"], 2, 1) == [["g0"], ["g1"]]
    assert pick_gpus(node, ["g1", "g2", "g0", "g3"], 1, 3) == [["g2", "g0", "g3"]]
    assert pick_gpus(node, ["g1", "g2", "g0", "g3"], 1, 4) == [["g1", "g2", "g0", "g3"]]


def test_the_smallest_group_that_holds_a_worker_is_taken():
    node = topology(*(gpu(i, pcie_switch="s0" if i < 3 else "s1") for i in range(5)))
    assert pick_gpus(node, ["g0", "g1", "g2", "g3", "g4"], 2, 2) == [["g3", "g4"], ["g0", "g1"]]


def test_gpus_of_unknown_topology_are_taken_in_order():
    assert pick_gpus(topology(gpu(0), gpu(1), gpu(2)), ["g2", "g0", "g1"], 1, 2) == [["g2", "g0"]]
