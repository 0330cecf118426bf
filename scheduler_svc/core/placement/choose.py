"""From a gang and the free GPUs of each node to the GPUs themselves.

Consolidated if the job's skew is above PACKLIMIT or not known, else spread (paper section 3.4).
"""

from collections.abc import Callable, Mapping
from heapq import nlargest

import msgspec

from broker.schemas.operator import Settings
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.job import Job, Placement
from scheduler_svc.core.placement.consolidate import consolidate, fewest_nodes
from scheduler_svc.core.placement.spread import spread
from scheduler_svc.core.placement.topology import pick_gpus

Free = dict[str, list[str]]
"""Node -> GPU ids a gang could have there, the preferred ones first."""
Chooser = Callable[[Mapping[str, int], int], dict[str, int] | None]


class Shape(msgspec.Struct, frozen=True):
    """How one gang may be laid out. ``max_nodes`` None means any number."""

    is_consolidated: bool
    is_required: bool
    fewest_nodes: int

    @property
    def strictness(self) -> tuple[bool, ...]:
        """Which of ``is_strict`` to try, in order: only the fewest nodes, any number of them."""
        if not self.is_consolidated:
            return (False,)
        return (True,) if self.is_required else (True, False)


def is_consolidated(job: Job, settings: Settings) -> bool:
    """A skewed model suffers when spread; an unknown one is taken for skewed."""
    return job.skew is None or job.skew > settings.pack_limit


class Fits:
    """How many nodes a gang needs on the empty usable cluster; remembered for one pass."""

    def __init__(self, cluster: Cluster) -> None:
        self._gpus = {
            node.name: node.healthy_gpus() for node in cluster.nodes.values() if node.is_usable
        }
        self._fewest: dict[tuple[int, int], int | None] = {}

    def fewest_nodes(self, job: Job) -> int | None:
        """Return the number of nodes, or None if the gang never fits."""
        key = (job.workers, job.gpus_per_worker)
        if key not in self._fewest:
            slots = {node: gpus // job.gpus_per_worker for node, gpus in self._gpus.items()}
            self._fewest[key] = fewest_nodes(slots, job.workers)
        return self._fewest[key]

    def fill(self, job: Job, shape: "Shape", wishes: list[str]) -> dict[str, int]:
        """Return node -> workers: the first of ``wishes`` with which the gang would fit, if idle.

        A gang that must be consolidated gets no more than its fewest nodes, so each node taken
        must leave enough room on the largest of the others.
        """
        left = {node: self._gpus[node] // job.gpus_per_worker for node in wishes}
        is_limited = shape.is_consolidated and shape.is_required
        nodes_left = shape.fewest_nodes if is_limited else len(left)
        missing = job.workers
        filled: dict[str, int] = {}
        for node in wishes:
            slots = min(left.pop(node), missing)
            if slots and sum(nlargest(nodes_left - 1, left.values())) >= missing - slots:
                filled[node] = slots
                missing -= slots
                nodes_left -= 1
        return filled


def shape_of(job: Job, settings: Settings, fewest: int) -> Shape:
    """Return the layout the job wants."""
    return Shape(
        is_consolidated=is_consolidated(job, settings),
        is_required=(job.consolidate or settings.consolidate) == "require",
        fewest_nodes=fewest,
    )


def place(
    job: Job, shape: Shape, free: Free, cluster: Cluster, *, is_strict: bool
) -> Placement | None:
    """Choose GPUs out of ``free``; ``is_strict`` allows no more than the fewest nodes."""
    slots = {node: len(gpus) // job.gpus_per_worker for node, gpus in free.items()}
    chooser: Chooser = consolidate if shape.is_consolidated else spread
    chosen = chooser(slots, job.workers)
    if chosen is None or (is_strict and len(chosen) > shape.fewest_nodes):
        return None
    return {
        node: pick_gpus(cluster.nodes[node], free[node], chosen[node], job.gpus_per_worker)
        for node in sorted(chosen)
    }
