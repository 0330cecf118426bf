"""Commands under test talk to a cluster in memory, as a fixed user, from an empty folder."""

import pytest

from cli import client
from tests.unit.cli.support import FakeCluster


@pytest.fixture
def cluster(monkeypatch):
    fake = FakeCluster()
    monkeypatch.setattr(client, "open_bus", fake.open_bus)
    return fake


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """No server of this machine, no address file, no account name leaks into a test."""
    for name in ("TIRESIAS_NATS", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TIRESIAS_USER", "ada")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)
