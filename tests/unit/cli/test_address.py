"""Where the commands look for the server."""

import os
import stat

import pytest

from cli import address
from cli.address import AddressFile


@pytest.fixture
def environment(tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    return {"XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": str(tmp_path / "state")}


def mine(url="nats://127.0.0.1:5555"):
    return AddressFile(url=url, pid=os.getpid(), state_dir="/state")


def test_the_option_wins_then_the_file_then_the_default(environment):
    assert address.find(None, environment).url == "nats://127.0.0.1:4222"
    path = address.write(mine(), environment)
    found = address.find(None, environment)
    assert (found.url, found.source) == ("nats://127.0.0.1:5555", str(path))
    assert address.find("nats://other", environment).url == "nats://other"


def test_the_file_is_private_and_removed_by_its_writer(environment):
    path = address.write(mine(), environment)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["address.json"]
    address.remove(path)
    assert not path.exists()


def test_a_file_of_an_up_that_is_gone_does_not_count(environment):
    address.write(AddressFile(url="nats://gone", pid=2**22 - 1, state_dir="/"), environment)
    assert address.find(None, environment).source == "the default"


def test_nobody_removes_the_file_of_a_newer_up(environment):
    path = address.write(mine(), environment)
    address.write(AddressFile(url="nats://newer", pid=1, state_dir="/"), environment)
    address.remove(path)
    assert address.find(None, environment).url == "nats://newer"


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"url": 1}'])
def test_a_damaged_file_does_not_count(environment, content):
    path = address.write(mine(), environment)
    path.write_bytes(content)
    assert address.find(None, environment).source == "the default"


def test_without_a_runtime_folder_the_state_folder_is_used(tmp_path):
    environment = {"XDG_RUNTIME_DIR": "/nonexistent", "XDG_STATE_HOME": str(tmp_path)}
    assert address.address_path(environment) == tmp_path / "tiresias" / "address.json"
