"""One rig for each test."""

import pytest

from tests.unit.scheduler_svc_shell.rig import Rig


@pytest.fixture
async def rig(tmp_path):
    return Rig(tmp_path / "state")
