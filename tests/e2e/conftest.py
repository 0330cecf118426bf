"""A real cluster, one for each test module."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="module")
def cluster():
    from real_cluster import RealCluster

    running = RealCluster("--queue-limits", "16")
    yield running
    running.close()
