"""One agent in a world of its own."""

from pathlib import Path

import pytest

from tests.unit.node_agent.support import World


@pytest.fixture
async def world(tmp_path: Path):
    made = World(tmp_path)
    await made.listen()
    return made
