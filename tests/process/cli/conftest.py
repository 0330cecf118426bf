"""A real cluster for each test, stopped whatever happens."""

import pytest

from tests.process.cli.support import RealUp, until_gone


@pytest.fixture
def up(tmp_path):
    real = RealUp(tmp_path)
    yield real
    real.close()
    for process in until_gone(tmp_path, timeout_s=5):
        process.kill()
