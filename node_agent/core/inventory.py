"""Which GPUs the node offers: what was found, cut down by the device mask, never renumbered.

A GPU is its UUID. Within one boot an index, once seen, belongs to its UUID, so that a GPU that
falls off the bus does not shift the meaning of a mask such as ``2,3``.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from broker.schemas.node import GpuFaultReason, GpuInfo, NodeJoined
from node_agent.core.readings import ProbedGpu, ProbedInventory

Gpus = tuple[GpuInfo, ...]


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is besides its GPUs; ``address`` is where tasks of other nodes connect to."""

    node: str
    boot_id: str
    address: str
    cpus: int = 0
    memory_bytes: int = 0
    version: str = ""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs the node puts up, and what an operator should know about those it does not."""

    gpus: Gpus = ()
    problem: str = ""


def described(inventory: ProbedInventory) -> Offer:
    """Return whole GPUs with their NVLink peers and PCIe switches; MIG GPUs are left out."""
    usable = tuple(probed for probed in inventory.gpus if not probed.is_mig_enabled)
    problems = [inventory.problem] if inventory.problem else []
    problems += [
        f"{probed.gpu.gpu_id} has MIG on: only whole GPUs are offered"
        for probed in inventory.gpus
        if probed.is_mig_enabled
    ]
    switches = _switches(usable)
    gpus = tuple(
        msgspec.structs.replace(
            probed.gpu,
            pcie_switch=switches.get(probed.gpu.gpu_id, ""),
            nvlink_peers=_nvlink_peers(probed, usable),
        )
        for probed in usable
    )
    return Offer(gpus=gpus, problem="; ".join(problems))


def with_remembered(
    found: Gpus, remembered: Gpus, *, same_boot: bool, faulty: Collection[str]
) -> Gpus:
    """Return the GPUs found plus those that must not be forgotten.

    Within a boot all that were seen stay, with their index. After a restart of the machine only
    GPUs with a standing fault stay; if one's index was taken it gets the next free one.
    Simulated GPUs are declared, not found, so they are never remembered.
    """
    missing = tuple(gpu for gpu in remembered if not gpu.simulated)
    if not same_boot:
        return _joined(found, tuple(gpu for gpu in missing if gpu.gpu_id in faulty))
    fresh = {gpu.gpu_id: gpu for gpu in found}
    kept = tuple(
        msgspec.structs.replace(fresh.get(gpu.gpu_id, gpu), index=gpu.index) for gpu in missing
    )
    return _joined(kept, found)


def visible(gpus: Gpus, mask: str | None) -> Offer:
    """Apply a ``CUDA_VISIBLE_DEVICES`` mask as CUDA reads it.

    None is no mask. Entries are indexes (PCI bus order), UUIDs or unique beginnings of UUIDs;
    -1 ends the list, and so does a bad entry, which is told in ``problem``.
    """
    if mask is None:
        return Offer(gpus=gpus)
    chosen: list[GpuInfo] = []
    for entry in (text.strip() for text in mask.split(",")):
        if entry in ("", "-1"):
            break
        matches = [gpu for gpu in gpus if _is_named(gpu, entry)]
        problem = _problem_of_entry(entry, matches, chosen)
        if problem:
            hint = "it and what follows is not offered"
            return Offer(gpus=tuple(chosen), problem=f"device mask {mask!r}: {problem}; {hint}")
        chosen += matches
    return Offer(gpus=tuple(chosen))


def node_joined(host: Host, offer: Offer, unhealthy: Mapping[str, GpuFaultReason]) -> NodeJoined:
    """Return the message that offers the node; faults of GPUs outside the offer are left out."""
    offered = {gpu.gpu_id for gpu in offer.gpus}
    return NodeJoined(
        node=host.node,
        boot_id=host.boot_id,
        host=host.address,
        gpus=offer.gpus,
        unhealthy={gpu_id: fault for gpu_id, fault in unhealthy.items() if gpu_id in offered},
        problem=offer.problem,
        cpus=host.cpus,
        memory_bytes=host.memory_bytes,
        version=host.version,
    )


def _is_named(gpu: GpuInfo, entry: str) -> bool:
    if entry.isdecimal():
        return str(gpu.index) == (entry.lstrip("0") or "0")
    return gpu.gpu_id.startswith(entry)


def _problem_of_entry(entry: str, matches: list[GpuInfo], chosen: list[GpuInfo]) -> str:
    if not matches:
        return f"no GPU {entry!r} on this node"
    if len(matches) > 1:
        return f"{entry!r} fits {len(matches)} GPUs"
    if matches[0] in chosen:
        return f"{entry!r} names a GPU twice"
    return ""


def _joined(first: Gpus, second: Gpus) -> Gpus:
    """Return ``first`` and what only ``second`` has, by index; indexes stay unique."""
    result = {gpu.gpu_id: gpu for gpu in first}
    taken = {gpu.index for gpu in first}
    for gpu in second:
        if gpu.gpu_id in result:
            continue
        index = gpu.index if gpu.index not in taken else max(taken) + 1
        taken.add(index)
        result[gpu.gpu_id] = msgspec.structs.replace(gpu, index=index)
    return tuple(sorted(result.values(), key=lambda gpu: gpu.index))


def _switches(probed_gpus: Sequence[ProbedGpu]) -> dict[str, str]:
    """Name each PCIe switch after the first GPU behind it; a GPU alone has none."""
    names: dict[str, str] = {}
    for probed in probed_gpus:
        name = names.get(probed.gpu.gpu_id, f"switch-of-{probed.gpu.pci_bus_id}")
        for neighbour in probed.switch_neighbours:
            names.setdefault(neighbour, name)
            names.setdefault(probed.gpu.gpu_id, name)
    return names


def _nvlink_peers(probed: ProbedGpu, others: Sequence[ProbedGpu]) -> tuple[str, ...]:
    """GPUs linked directly, or that have a link to the same NVSwitch."""
    bus_ids = {other.gpu.pci_bus_id.lower() for other in others}
    remotes = _remotes(probed)
    return tuple(
        other.gpu.gpu_id
        for other in others
        if other.gpu.gpu_id != probed.gpu.gpu_id
        and (
            other.gpu.pci_bus_id.lower() in remotes
            or not remotes.isdisjoint(_remotes(other) - bus_ids)
        )
    )


def _remotes(probed: ProbedGpu) -> set[str]:
    return {remote.lower() for remote in probed.nvlink_remotes}
