"""House rules that no linter knows: sizes, docstrings, banned words and calls, no machine paths."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "scheduler_svc", "node_agent", "launcher", "simulator", "cli", "tiresias")
MAY_PRINT = ("cli", "examples", "benchmarks", "scripts")
FUNCTION_LINES = 60
FILE_LINES = 600

BANNED_CALLS = {
    "asyncio.get_event_loop": "use asyncio.get_running_loop",
    "datetime.datetime.now": "take a Clock and use its now_ms",
    "datetime.datetime.utcnow": "take a Clock and use its now_ms",
    "datetime.now": "take a Clock and use its now_ms",
    "datetime.utcnow": "take a Clock and use its now_ms",
    "os._exit": "raise, or return from main; only a forked child may end like this",
    "os.system": "use asyncio.create_subprocess_exec or subprocess.run with a list",
    "time.time": "take a Clock and use its now_ms, or time.monotonic for a wait",
}
MAY_CALL = {
    "datetime.datetime.now": ("cli",),
    "datetime.now": ("cli",),
    "os._exit": ("launcher", "tiresias"),
}
BANNED_WORDS = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
MACHINE_PATHS = re.compile(r"/(?:root|home|Users|work)/(?!user\b|ada\b|you\b)[a-z]")
HAND_MADE_SUBJECT = re.compile(r"tiresias\.v\d+\.")
BINARY_SUFFIXES = frozenset((".gz", ".npz", ".png"))


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the project: in git, or new and not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(set(listing.stdout.split("\0")) - {""})
    return tuple(path for name in names if (path := ROOT / name).is_file())


def in_folders(*folders: str) -> Iterator[Path]:
    """The Python files of some top folders, or of all."""
    for path in tracked():
        if path.suffix == ".py" and (not folders or path.relative_to(ROOT).parts[0] in folders):
            yield path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def calls_of(path: Path) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_files_are_at_most_600_lines() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in in_folders()}
    assert [place(path, n) for path, n in lengths.items() if n > FILE_LINES] == []


def test_functions_are_at_most_60_lines() -> None:
    long = [
        f"{place(path, node.lineno)} {node.name}: {lines} lines"
        for path in in_folders()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]
    assert long == []


def test_every_module_states_its_rule() -> None:
    silent = [
        place(path, 1)
        for path in in_folders(*PACKAGES, "scripts", "tests", "examples", "benchmarks")
        if tree_of(path).body and not ast.get_docstring(tree_of(path))
    ]
    assert silent == []


def test_only_commands_and_examples_print() -> None:
    printing = [
        place(path, call.lineno)
        for path in in_folders(*(name for name in PACKAGES if name not in MAY_PRINT))
        if path.name != "__main__.py"
        for call, name in calls_of(path)
        if name in {"print", "pprint.pprint"}
    ]
    assert printing == []


def test_banned_calls_are_not_used() -> None:
    found = [
        f"{place(path, call.lineno)} {name}: {BANNED_CALLS[name]}"
        for path in in_folders(*PACKAGES)
        for call, name in calls_of(path)
        if name in BANNED_CALLS and path.relative_to(ROOT).parts[0] not in MAY_CALL.get(name, ())
    ]
    assert found == []


def test_no_process_is_started_through_a_shell() -> None:
    found = [
        place(path, call.lineno)
        for path in in_folders(*PACKAGES)
        for call, name in calls_of(path)
        if name.endswith("create_subprocess_shell")
        or any(
            keyword.arg == "shell" and getattr(keyword.value, "value", None) is True
            for keyword in call.keywords
        )
    ]
    assert found == []


def test_subjects_are_built_in_one_place() -> None:
    """A docstring may name a subject; code outside broker/subjects.py may not build one."""
    found = [
        place(path, node.lineno)
        for path in in_folders(*PACKAGES)
        if path != ROOT / "broker" / "subjects.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Call)
        for part in ast.walk(node)
        if (isinstance(part, ast.Constant) and HAND_MADE_SUBJECT.match(str(part.value)))
        or (isinstance(part, ast.FormattedValue) and ast.unparse(part.value).endswith("PREFIX"))
    ]
    assert found == []


def test_the_words_package_reexports_nothing() -> None:
    imports = [
        node
        for node in ast.walk(tree_of(ROOT / "broker" / "__init__.py"))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert imports == []


def test_services_are_never_run_without_assertions() -> None:
    optimised = [
        place(path, call.lineno)
        for path in in_folders(*PACKAGES)
        for call, _ in calls_of(path)
        for part in ast.walk(call)
        if isinstance(part, ast.Constant) and part.value in {"-O", "-OO", "PYTHONOPTIMIZE"}
    ]
    assert optimised == []


@pytest.mark.parametrize(
    ("rule", "pattern"),
    [("no note to self is left behind", BANNED_WORDS), ("no path of one machine", MACHINE_PATHS)],
)
def test_no_file_holds(rule: str, pattern: re.Pattern[str]) -> None:
    found = [
        f"{place(path, number)}: {line.strip()}"
        for path in tracked()
        if path.suffix not in BINARY_SUFFIXES and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == [], rule


def test_no_package_index_is_named() -> None:
    """Where packages come from is the business of the machine that installs them."""
    config = [ROOT / "pyproject.toml", ROOT / "constraints.txt", ROOT / "Makefile"]
    found = [path.name for path in config if re.search(r"index-url|https?://", path.read_text())]
    assert found == []


def test_scripts_are_executable_and_say_how_they_fail() -> None:
    for path in [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]:
        text = path.read_text(encoding="utf-8")
        if text.startswith("#!"):
            assert path.stat().st_mode & 0o111, path
            assert "set -euo pipefail" in text, path
