"""Consolidated placement: the fewest nodes, best fit (paper section 3.4).

Whole nodes serve the multiples of a node; the rest goes where the least is left over. Slots are
workers that fit: free GPUs // GPUs per worker. Ties end in the node's name.
"""

from collections.abc import Mapping


def consolidate(slots: Mapping[str, int], workers: int) -> dict[str, int] | None:
    """Return node -> workers over the fewest nodes, or None if ``workers`` do not fit."""
    chosen: dict[str, int] = {}
    left = {node: count for node, count in slots.items() if count > 0}
    while workers > 0:
        if not left:
            return None
        enough = [node for node, count in left.items() if count >= workers]
        if enough:
            node = min(enough, key=lambda name: (left[name], name))
        else:
            node = min(left, key=lambda name: (-left[name], name))
        chosen[node] = min(left.pop(node), workers)
        workers -= chosen[node]
    return chosen


def fewest_nodes(slots: Mapping[str, int], workers: int) -> int | None:
    """How many nodes a consolidated gang needs at least; None if it never fits."""
    chosen = consolidate(slots, workers)
    return None if chosen is None else len(chosen)
