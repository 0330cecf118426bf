"""Spread placement: use up fragments, keep whole nodes free (paper section 3.4).

For jobs whose skew says that spreading costs nothing. Ties end in the node's name.
"""

from collections.abc import Mapping


def spread(slots: Mapping[str, int], workers: int) -> dict[str, int] | None:
    """Return node -> workers, nodes with the fewest free slots first; None if it does not fit."""
    chosen: dict[str, int] = {}
    for node in sorted((name for name in slots if slots[name] > 0), key=lambda n: (slots[n], n)):
        chosen[node] = min(slots[node], workers)
        workers -= chosen[node]
        if workers == 0:
            return chosen
    return None
