"""One node with a launcher; whatever a test leaves running is killed at its end."""

import signal
from pathlib import Path

import pytest

from launcher import process_tree
from tests.process.launcher.support import Node


@pytest.fixture
async def node(tmp_path: Path):
    made = Node(tmp_path)
    await made.up()
    yield made
    if made.is_up:
        await made.down()
    for folder in (tmp_path / "state" / "runs").glob("*"):
        process_tree.signal_all(made.processes(folder.name), signal.SIGKILL)
