"""Placement against first fit and against all node sets of a small cluster."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core.placement.consolidate import consolidate
from scheduler_svc.core.placement.spread import spread
from tests.property.conftest import examples

free_slots = st.lists(st.integers(0, 8), min_size=1, max_size=7).map(
    lambda counts: {f"n{i}": count for i, count in enumerate(counts)}
)


def first_fit(slots, workers):
    """Nodes by name, each filled up, until the gang is placed."""
    chosen = {}
    for node, count in slots.items():
        if taken := min(count, workers):
            chosen[node] = taken
            workers -= taken
    return None if workers else chosen


def fewest_nodes_of_all(slots, workers):
    """Try every set of nodes, small ones first."""
    return next(
        size
        for size in range(1, len(slots) + 1)
        for nodes in combinations(slots.values(), size)
        if sum(nodes) >= workers
    )


@settings(max_examples=examples(150))
@given(free_slots, st.integers(1, 30))
def test_a_consolidated_gang_is_on_the_fewest_nodes_there_are(slots, workers):
    chosen, plain = consolidate(slots, workers), first_fit(slots, workers)
    assert (chosen is None) == (plain is None)
    if chosen is not None:
        assert sum(chosen.values()) == workers
        assert all(0 < count <= slots[node] for node, count in chosen.items())
        assert len(chosen) == fewest_nodes_of_all(slots, workers) <= len(plain)


@settings(max_examples=examples(150))
@given(free_slots, st.integers(1, 30))
def test_a_spread_gang_uses_up_the_smallest_fragments(slots, workers):
    chosen = spread(slots, workers)
    assert (chosen is None) == (sum(slots.values()) < workers)
    if chosen is not None:
        assert sum(chosen.values()) == workers
        largest = max(slots[node] for node in chosen)
        smaller = [node for node, count in slots.items() if 0 < count < largest]
        assert all(chosen[node] == slots[node] for node in smaller)
