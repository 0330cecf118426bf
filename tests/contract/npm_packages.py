"""Packages from the npm registry for tests that check us with other people's tools."""

import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL_SECONDS = 90


def install(folder: Path, *packages: str) -> Path:
    """Install into ``folder`` and return it; skip the test, saying why, where that cannot be."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    command = ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder), *packages]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm install took longer than {INSTALL_SECONDS} s")
    if result.returncode != 0:
        pytest.skip(f"npm cannot install {packages}: {result.stderr.strip()[-200:]}")
    return folder
