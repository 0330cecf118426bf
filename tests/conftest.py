"""Fixtures that every part uses: a clock that stands still, buses, a fresh nats-server."""

import pytest

from broker import topology
from broker.clock import ManualClock
from broker.embedded import EmbeddedServer
from broker.memory_bus import MemoryBus, MemoryServer
from broker.nats_bus import connect

_NEEDS_NATS = {"nats_server", "nats_url", "nats_bus"}


def pytest_collection_modifyitems(items):
    for item in items:
        if _NEEDS_NATS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.nats)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def memory_bus(clock):
    bus = MemoryBus(MemoryServer(clock))
    yield bus
    await bus.close()


@pytest.fixture
async def nats_server(tmp_path):
    """A fresh server; ``pid``, ``url`` and ``restart()`` for tests that hurt it."""
    async with EmbeddedServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def nats_url(nats_server):
    return nats_server.url


@pytest.fixture
async def nats_bus(nats_url):
    """A connection to a fresh server with all streams and buckets."""
    bus = await connect(nats_url, name="test")
    await topology.ensure(bus)
    yield bus
    await bus.close()
