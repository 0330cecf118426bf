"""The cluster: nodes, GPUs by UUID, and who owns each GPU.

One owner a GPU at most; only `acquire` and `release` change owners.
"""

from collections.abc import Iterable

import msgspec

from broker.schemas.node import GpuFaultReason, GpuInfo, NodeJoined
from scheduler_svc.core.errors import InvariantError
from scheduler_svc.core.job import Placement, gpus_of


class Gpu(msgspec.Struct, kw_only=True):
    """A GPU of a node, and who has it."""

    info: GpuInfo
    owner: str | None = None
    """The run of the scheduler's that owns it."""
    foreign_run: str | None = None
    """A run that owns it by its launcher's ledger, and that the scheduler does not know."""
    fault: GpuFaultReason | None = None
    fault_detail: str = ""
    is_releasing: bool = False
    """Its owner was told to stop."""
    is_present: bool = True
    """False: the node's newest inventory lacks it; kept only until its run is over."""

    @property
    def is_healthy(self) -> bool:
        return self.is_present and self.fault is None

    @property
    def is_obtainable(self) -> bool:
        """A job may get it, at the latest when runs that the scheduler knows are over."""
        return self.is_healthy and self.foreign_run is None


class Node(msgspec.Struct, kw_only=True):
    """A node as its agent and the leader's watch describe it."""

    name: str
    state: str = "left"
    """up, silent, lost or left."""
    boot_id: str = ""
    launcher_boot_id: str = ""
    """Boot of the machine in which its launcher last reported; empty once it left."""
    host: str = ""
    problem: str = ""
    is_cordoned: bool = False
    note: str = ""
    gpus: dict[str, Gpu] = {}

    @property
    def is_usable(self) -> bool:
        """New runs may be placed here: agent and launcher are there, and it is not cordoned."""
        return self.is_whole and not self.is_cordoned

    @property
    def is_whole(self) -> bool:
        """Its agent offers GPUs and its launcher takes commands."""
        return self.state == "up" and self.launcher_boot_id == self.boot_id

    def healthy_gpus(self) -> int:
        return sum(gpu.is_healthy for gpu in self.gpus.values())


class Cluster(msgspec.Struct):
    """All nodes by name."""

    nodes: dict[str, Node] = {}

    def join(self, message: NodeJoined) -> Node:
        """Take a node's newest inventory; owners of GPUs that are still there stay.

        So do GPUs with leftover processes, unless the machine was restarted.
        """
        node = self.node(message.node)
        is_clean = node.boot_id != message.boot_id
        node.state = "up"
        node.boot_id, node.host, node.problem = message.boot_id, message.host, message.problem
        offered = {info.gpu_id: info for info in message.gpus}
        for gpu_id, gpu in list(node.gpus.items()):
            gpu.is_present = gpu_id in offered
            if not gpu.is_present and gpu.owner is None:
                del node.gpus[gpu_id]
        for gpu_id, info in offered.items():
            gpu = node.gpus.setdefault(gpu_id, Gpu(info=info))
            gpu.info = info
            is_dirty = gpu.fault is GpuFaultReason.DIRTY and not is_clean
            if gpu_id in message.unhealthy or not is_dirty:
                gpu.fault, gpu.fault_detail = message.unhealthy.get(gpu_id), ""
        return node

    def node(self, name: str) -> Node:
        """Return a node, known from its agent or from its launcher; new ones have left."""
        return self.nodes.setdefault(name, Node(name=name))

    def usable_gpus(self) -> int:
        """GPUs new runs could get if nothing ran."""
        return sum(node.healthy_gpus() for node in self.nodes.values() if node.is_usable)

    def obtainable_gpus(self) -> int:
        """Usable GPUs except those owned by runs that nobody knows."""
        return sum(
            gpu.is_obtainable
            for node in self.nodes.values()
            if node.is_usable
            for gpu in node.gpus.values()
        )

    def gpu(self, node: str, gpu_id: str) -> Gpu:
        return self.nodes[node].gpus[gpu_id]

    def is_usable(self, node: str, gpu_id: str) -> bool:
        """The GPU is obtainable and on a node that takes new runs."""
        found = self.nodes.get(node)
        gpu = found.gpus.get(gpu_id) if found is not None and found.is_usable else None
        return gpu is not None and gpu.is_obtainable

    def acquire(self, placement: Placement, run_id: str) -> None:
        """Give every GPU of the placement to the run, or raise `InvariantError`."""
        for node, gpu_id in gpus_of(placement):
            gpu = self.gpu(node, gpu_id)
            if (taken_by := gpu.owner or gpu.foreign_run) is not None:
                raise InvariantError(f"GPU {gpu_id!r} of {node!r} is owned by run {taken_by!r}")
            gpu.owner = run_id

    def mark_releasing(self, placement: Placement) -> None:
        """The owner of these GPUs was told to stop."""
        for node, gpu_id in gpus_of(placement):
            self.gpu(node, gpu_id).is_releasing = True

    def release(self, run_id: str, nodes: Iterable[str]) -> None:
        """Free what the run owns on these nodes; GPUs no longer present are forgotten."""
        for name in nodes:
            node = self.nodes[name]
            for gpu_id, gpu in list(node.gpus.items()):
                if gpu.foreign_run == run_id:
                    gpu.foreign_run = None
                if gpu.owner == run_id:
                    gpu.owner, gpu.is_releasing = None, False
                    if not gpu.is_present:
                        del node.gpus[gpu_id]
