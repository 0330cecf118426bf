"""Which GPUs inside a node: those that share an NVLink, a PCIe switch or a NUMA node.

A worker takes the smallest group of close GPUs that holds it, so that larger groups stay whole.
"""

from collections import defaultdict

from scheduler_svc.core.cluster import Node


def pick_gpus(node: Node, free: list[str], workers: int, gpus_per_worker: int) -> list[list[str]]:
    """Return the GPU ids of each worker out of ``free`` (in order of preference)."""
    left = list(free)
    picked = []
    for _ in range(workers):
        gpus = _closest(node, left, gpus_per_worker)
        picked.append(gpus)
        left = [gpu_id for gpu_id in left if gpu_id not in gpus]
    return picked


def _closest(node: Node, free: list[str], count: int) -> list[str]:
    """The first ``count`` of the smallest group of close GPUs that has so many."""
    if count == 1:
        return free[:1]
    for key in (_nvlink_group, _switch_group, _numa_group):
        groups: dict[str, list[str]] = defaultdict(list)
        for gpu_id in free:
            groups[key(node, gpu_id)].append(gpu_id)
        fitting = [group for name, group in groups.items() if name and len(group) >= count]
        if fitting:
            return min(fitting, key=len)[:count]
    return free[:count]


def _nvlink_group(node: Node, gpu_id: str) -> str:
    info = node.gpus[gpu_id].info
    return ",".join(sorted((*info.nvlink_peers, gpu_id))) if info.nvlink_peers else ""


def _switch_group(node: Node, gpu_id: str) -> str:
    return node.gpus[gpu_id].info.pcie_switch


def _numa_group(node: Node, gpu_id: str) -> str:
    numa_node = node.gpus[gpu_id].info.numa_node
    return "" if numa_node is None else f"numa{numa_node}"
