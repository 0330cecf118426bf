"""Which GPUs a node offers: the mask, the memory across restarts, the neighbourhood."""

import msgspec
import pytest

from broker.schemas.node import GpuFaultReason, GpuInfo
from node_agent.core import inventory
from node_agent.core.readings import ProbedGpu, ProbedInventory


def gpu(index: int, gpu_id: str = "", **fields) -> GpuInfo:
    bus_id = f"00000000:{index:02X}:00.0"
    return GpuInfo(gpu_id=gpu_id or f"GPU-{index}aaa", index=index, pci_bus_id=bus_id, **fields)


FOUR = tuple(gpu(index) for index in range(4))


def ids(gpus) -> list[str]:
    return [entry.gpu_id for entry in gpus]


@pytest.mark.parametrize(
    ("mask", "indexes"),
    [
        (None, [0, 1, 2, 3]),
        ("2,3", [2, 3]),
        (" 3 , 02 ", [3, 2]),
        ("GPU-1aaa,GPU-3aaa", [1, 3]),
        ("GPU-1,GPU-3", [1, 3]),
        ("0,GPU-3", [0, 3]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
    ],
)
def test_capacity_follows_the_mask(mask, indexes) -> None:
    offer = inventory.visible(FOUR, mask)
    assert [entry.index for entry in offer.gpus] == indexes
    assert offer.problem == ""


@pytest.mark.parametrize(
    ("mask", "offered", "named"),
    [
        ("0,7", [0], "no GPU '7'"),
        ("7,0", [], "no GPU '7'"),
        ("0," + "9" * 5000, [0], "no GPU"),
        ("GPU-", [], "'GPU-' fits 4 GPUs"),
        ("1,GPU-1", [1], "'GPU-1' names a GPU twice"),
        ("MIG-GPU-1aaa/1/0", [], "no GPU 'MIG-GPU-1aaa/1/0'"),
        ("all", [], "no GPU 'all'"),
    ],
)
def test_a_bad_mask_entry_is_a_clear_problem_and_ends_the_list(mask, offered, named) -> None:
    offer = inventory.visible(FOUR, mask)
    assert [entry.index for entry in offer.gpus] == offered
    assert named in offer.problem
    assert "device mask" in offer.problem


def test_within_a_boot_a_gpu_that_is_gone_keeps_its_place_and_index() -> None:
    shifted = (gpu(0), gpu(1), gpu(2, "GPU-3aaa", memory_bytes=7))
    merged = inventory.with_remembered(shifted, FOUR, same_boot=True, faulty=())
    assert ids(merged) == ids(FOUR)
    assert [entry.index for entry in merged] == [0, 1, 2, 3]
    assert merged[3].memory_bytes == 7
    assert ids(inventory.visible(merged, "1,2").gpus) == ["GPU-1aaa", "GPU-2aaa"]


def test_a_new_gpu_gets_the_next_index_if_its_own_is_taken() -> None:
    found = (gpu(0), gpu(1, "GPU-new"))
    merged = inventory.with_remembered(found, FOUR[:2], same_boot=True, faulty=())
    assert [(entry.gpu_id, entry.index) for entry in merged] == [
        ("GPU-0aaa", 0),
        ("GPU-1aaa", 1),
        ("GPU-new", 2),
    ]


def test_after_a_reboot_only_faulty_gpus_are_remembered() -> None:
    found = (gpu(0), gpu(1))
    merged = inventory.with_remembered(found, FOUR, same_boot=False, faulty={"GPU-3aaa"})
    assert ids(merged) == ["GPU-0aaa", "GPU-1aaa", "GPU-3aaa"]


def test_a_smaller_declared_inventory_loses_no_gpu() -> None:
    declared = tuple(gpu(index, f"SIM-a-{index}", simulated=True) for index in range(4))
    merged = inventory.with_remembered(declared[:2], declared, same_boot=True, faulty=())
    assert merged == declared[:2]


def test_gpus_behind_one_switch_share_its_name() -> None:
    probed = (
        ProbedGpu(gpu=FOUR[0], switch_neighbours=("GPU-1aaa",)),
        ProbedGpu(gpu=FOUR[1], switch_neighbours=("GPU-0aaa",)),
        ProbedGpu(gpu=FOUR[2]),
    )
    gpus = inventory.described(ProbedInventory(gpus=probed)).gpus
    assert gpus[0].pcie_switch == gpus[1].pcie_switch == "switch-of-00000000:00:00.0"
    assert gpus[2].pcie_switch == ""


def test_nvlink_peers_are_direct_neighbours_or_behind_one_nvswitch() -> None:
    chain = (
        ProbedGpu(gpu=FOUR[0], nvlink_remotes=("00000000:01:00.0",)),
        ProbedGpu(gpu=FOUR[1], nvlink_remotes=("00000000:00:00.0", "00000000:02:00.0")),
        ProbedGpu(gpu=FOUR[2], nvlink_remotes=("00000000:01:00.0",)),
    )
    peers = [g.nvlink_peers for g in inventory.described(ProbedInventory(gpus=chain)).gpus]
    assert peers == [("GPU-1aaa",), ("GPU-0aaa", "GPU-2aaa"), ("GPU-1aaa",)]

    switched = tuple(
        ProbedGpu(gpu=entry, nvlink_remotes=("00000000:C4:00.0".lower(),)) for entry in FOUR[:3]
    )
    peers = [g.nvlink_peers for g in inventory.described(ProbedInventory(gpus=switched)).gpus]
    assert peers[0] == ("GPU-1aaa", "GPU-2aaa")


def test_a_gpu_in_mig_mode_is_not_offered_and_said_so() -> None:
    probed = (ProbedGpu(gpu=FOUR[0], is_mig_enabled=True), ProbedGpu(gpu=FOUR[1]))
    offer = inventory.described(ProbedInventory(gpus=probed, problem="index 2 is silent"))
    assert ids(offer.gpus) == ["GPU-1aaa"]
    assert offer.problem == "index 2 is silent; GPU-0aaa has MIG on: only whole GPUs are offered"


def test_joined_tells_faults_of_offered_gpus_only() -> None:
    host = inventory.Host(node="a", boot_id="b", address="10.0.0.1", cpus=2, version="1")
    faults = {"GPU-1aaa": GpuFaultReason.LOST, "GPU-elsewhere": GpuFaultReason.XID}
    joined = inventory.node_joined(host, inventory.Offer(gpus=FOUR, problem="p"), faults)
    assert joined.unhealthy == {"GPU-1aaa": GpuFaultReason.LOST}
    assert (joined.node, joined.boot_id, joined.host) == ("a", "b", "10.0.0.1")
    assert (joined.gpus, joined.problem, joined.cpus) == (FOUR, "p", 2)
    assert msgspec.json.decode(msgspec.json.encode(joined), type=type(joined)) == joined
