"""A launcher that serves."""

from pathlib import Path

import pytest

from tests.unit.launcher.support import World


@pytest.fixture
async def world(tmp_path: Path):
    made = World(tmp_path)
    await made.up()
    yield made
    if not made.task.done():
        await made.down()
