"""Cores and words load nothing that could wait, read a clock, roll dice or touch the machine.

A fresh interpreter imports each package whole, so that indirect imports are seen as well. What the
start of the interpreter or msgspec itself loads (such as `time`) cannot be told apart here; the
import contracts and the ruff.toml of each core cover that part.
"""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORES = ("scheduler_svc.core", "node_agent.core", "launcher.core")
WORDS = ("broker.schemas", "broker.ids", "broker.subjects", "broker.errors", "broker.codec")
BANNED = frozenset(
    """
    asyncio concurrent.futures logging multiprocessing pathlib psutil pynvml random secrets select
    selectors socket ssl subprocess tempfile threading nats uvloop tensorflow numpy
    broker.bus broker.clock
    """.split()  # noqa: SIM905 - one column of sixty lines reads worse
)
LOADED_BY_US = """
import json, sys
import msgspec, msgspec.json
before = set(sys.modules)
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_of(package: str) -> list[str]:
    """The package and everything below it, found without importing."""
    folder = ROOT.joinpath(*package.split("."))
    if not folder.is_dir():
        return [package]
    found = [package]
    for module in pkgutil.iter_modules([str(folder)]):
        name = f"{package}.{module.name}"
        found.extend(modules_of(name) if module.ispkg else [name])
    return found


def loaded_by(modules: list[str]) -> set[str]:
    """What an interpreter has loaded after importing ``modules``, less what msgspec brings."""
    result = subprocess.run(
        [sys.executable, "-c", LOADED_BY_US, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(result.stdout))


@pytest.mark.parametrize("package", [*CORES, *WORDS])
def test_importing_it_loads_nothing_impure(package: str) -> None:
    assert loaded_by(modules_of(package)) & BANNED == set()


def test_the_check_sees_an_indirect_import() -> None:
    assert {"asyncio", "broker.clock"} <= loaded_by(["broker.clock"]) & BANNED


def test_what_training_code_imports_loads_only_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"tiresias"}
    foreign = {name for name in loaded_by(["tiresias"]) if name.partition(".")[0] not in allowed}
    assert foreign == set()
