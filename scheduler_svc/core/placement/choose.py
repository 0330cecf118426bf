"""From a gang and the free GPUs of each node to the GPUs themselves.

Consolidated if the job's skew is above PACKLIMIT or not known, else spread (paper section 3.4).
"""

from collections.abc import Callable, Mapping

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


def is_consolidated(job: Job, settings: Settings) -> bool:
    """A skewed model suffers when spread; an unknown one is taken for skewed."""
    return job.skew is None or job.skew > settings.pack_limit


def shape_of(job: Job, settings: Settings, cluster: Cluster) -> Shape | None:
    """Return the layout the job wants, or None if the usable cluster can never take it."""
    slots = {
        node.name: node.healthy_gpus() // job.gpus_per_worker
        for node in cluster.nodes.values()
        if node.is_usable
    }
    fewest = fewest_nodes(slots, job.workers)
    if fewest is None:
        return None
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
