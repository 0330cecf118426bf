"""The project's own promises: commands, pins, and a set-up that copes with any state of .venv."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FAKE_PYTHON = """#!/bin/bash
case "$*" in
  *ensurepip*) exit "${NO_VENV:-0}" ;;
  *version_info*) exit "${OLD:-0}" ;;
  --version) echo "Python 3.11.9" ;;
  "-m venv "*)
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
    echo "#!$PWD/$3/bin/python" >"$3/bin/pip" ;;
  "-m pip install "*)
    echo installed >>installs
    install -m 755 /dev/null .venv/bin/tiresias
    exit "${PIP_FAILS:-0}" ;;
esac
"""


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_dependency_is_bounded_and_pinned_within_its_bounds() -> None:
    project = pyproject()["project"]
    extras = project["optional-dependencies"].values()
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    for text in [*project["dependencies"], *(text for extra in extras for text in extra)]:
        wanted = Requirement(text)
        assert wanted.specifier, f"{text} has no bound"
        assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, text


def test_every_package_is_in_the_wheel_and_under_the_tools() -> None:
    tool = pyproject()["tool"]
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {
        "benchmarks",
        "scripts",
        "tests",
    }
    wheel = set(tool["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert folders == wheel == set(tool["mypy"]["packages"])
    assert wheel == set(tool["importlinter"]["root_packages"])


def test_the_commands_of_the_readme_are_targets_and_ci_runs_the_test_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert {"demo", "test"} <= set(re.findall(r"^make (\w+)", readme, re.MULTILINE)) <= targets
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the set-up needs of the project, and a Python that only pretends."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "tools" / "python3"
    python.parent.mkdir()
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return tmp_path


def set_up(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout / 'tools'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "scripts/setup.sh"],
        cwd=checkout,
        env={"PATH": path, "PYTHON": "python3", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def installs(checkout: Path) -> int:
    return (checkout / "installs").read_text().count("installed")


def test_a_second_set_up_does_and_says_nothing(checkout: Path) -> None:
    assert set_up(checkout).returncode == 0
    again = set_up(checkout)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert installs(checkout) == 1


def test_a_changed_dependency_is_installed(checkout: Path) -> None:
    set_up(checkout)
    with (checkout / "constraints.txt").open("a") as file:
        file.write("another==1\n")
    assert set_up(checkout).returncode == 0
    assert installs(checkout) == 2


def test_a_half_made_environment_is_made_anew(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    result = set_up(checkout)
    assert result.returncode == 0
    assert "making it anew" in result.stdout
    assert set_up(checkout).stdout == ""


def test_an_environment_of_another_place_is_made_anew(checkout: Path, tmp_path: Path) -> None:
    set_up(checkout)
    moved = checkout.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    result = set_up(moved)
    assert result.returncode == 0, result.stderr
    assert "making it anew" in result.stdout


def test_a_failed_installation_is_tried_again(checkout: Path) -> None:
    failed = set_up(checkout, PIP_FAILS="1")
    assert failed.returncode == 1
    assert "installation failed" in failed.stderr
    assert set_up(checkout).returncode == 0
    assert installs(checkout) == 2


@pytest.mark.parametrize(
    ("environment", "remedy"),
    [
        ({"NO_VENV": "1"}, "python3-venv"),
        ({"OLD": "1"}, "no Python 3.11, 3.12 or 3.13"),
        ({"PYTHON": "no-such-python"}, "make PYTHON="),
    ],
)
def test_what_is_missing_is_named_with_a_remedy(
    checkout: Path, environment: dict[str, str], remedy: str
) -> None:
    result = set_up(checkout, **environment)
    assert result.returncode == 1
    assert remedy in result.stderr
