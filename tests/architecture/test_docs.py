"""The documentation says what the code says: generated pages, links, examples, AsyncAPI."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
import yaml
from jsonschema import Draft202012Validator

from broker import codec
from broker.schemas.command import PrepareRun
from broker.schemas.job import JobSpec
from cli.main import app
from launcher.core.task_plan import LogLimits, NodePaths, build_plan
from scripts.generate_reference import outdated
from scripts.reference.channels import CHANNELS
from scripts.samples import sample_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_generated_pages_are_up_to_date() -> None:
    assert outdated() == [], "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = [link for link in links_of(page) if not leads_somewhere(page, link)]
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_job_files_in_the_docs_are_valid(page: Path) -> None:
    for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "yaml" and re.search(r"^run:", text, re.MULTILINE):
            request = json.dumps(yaml.safe_load(text)).encode()
            assert not hasattr(codec.decode_job_request("ada", request), "problems"), text


def test_the_job_file_schema_accepts_a_job_and_names_a_wrong_key() -> None:
    schema = json.loads((ROOT / "docs" / "reference" / "job-file.schema.json").read_bytes())
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"name": "hello", "run": ["python", "train.py"], "workers": 2})
    assert not validator.is_valid({"name": "hello", "run": "true", "gpu": 1})
    assert not validator.is_valid({"name": "hello"})


def test_asyncapi_references_resolve() -> None:
    document = asyncapi()
    assert document["asyncapi"] == "3.0.0"
    references = list(references_in(document))
    assert references
    for reference in references:
        place: Any = document
        for key in reference.removeprefix("#/").split("/"):
            place = place[key]


def test_asyncapi_examples_fit_their_schemas() -> None:
    document = asyncapi()
    for message in document["components"]["messages"].values():
        for example in message.get("examples", ()):
            schema = {**message["payload"], "components": document["components"]}
            Draft202012Validator(schema).validate(example["payload"])


def test_asyncapi_lists_every_subject_that_clients_may_use() -> None:
    addresses = {channel["address"] for channel in asyncapi()["channels"].values()}
    assert addresses == {c.address for c in CHANNELS if c.direction != "inside"}


def test_every_key_of_the_job_file_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "job-file.md").read_text(encoding="utf-8")
    assert [name for name in JobSpec.__struct_fields__ if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_docs_exist_with_their_options(page: Path) -> None:
    for words in commands_on(page):
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, words
            command = command.commands[words.pop(0)]
        known = {"--help", *(name for parameter in command.params for name in parameter.opts)}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known, f"{command.name}: {used - known}"


def test_every_variable_a_task_gets_is_documented() -> None:
    sample = sample_of(PrepareRun)
    sample["spec"]["env"] = {}
    prepare = msgspec.convert(sample, PrepareRun)
    paths = NodePaths(run_dir="/r", job_socket="/s", bell="/b", checkpoint_dir="/c")
    cluster = {"worker": ["10.0.0.1:1", "10.0.0.2:1"]}
    plan = build_plan(prepare, cluster, paths, LogLimits())
    names = {*plan.env, *(name for task in plan.tasks for name in task.env)}
    assert {"TIRESIAS_RANK", "TF_CONFIG", "CUDA_VISIBLE_DEVICES"} <= names
    text = (ROOT / "docs" / "how-to" / "plain-script.md").read_text(encoding="utf-8")
    assert {name for name in names if f"`{name}`" not in text} == set()


def commands_on(page: Path) -> Iterator[list[str]]:
    """The words after `tiresias` in code; a job's own command line is left out."""
    text = page.read_text(encoding="utf-8")
    blocks = (block for language, block in FENCE.findall(text) if language == "sh")
    lines = [line for block in blocks for line in block.splitlines()]
    for line in [*lines, *re.findall(r"`(tiresias [^`]+)`", FENCE.sub("", text))]:
        found = re.match(r"(?:\.venv/bin/)?tiresias (.+)", line)
        if found and not found[1].startswith("COMMAND"):
            yield found[1].partition("#")[0].partition(" -- ")[0].split()


def asyncapi() -> dict[str, Any]:
    text = (ROOT / "docs" / "reference" / "asyncapi.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def references_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from references_in(part)


def links_of(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in LINK.findall(text) if not link.startswith(("http", "mailto"))]


def leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor in anchors_of(target)


def anchors_of(page: Path) -> set[str]:
    """Anchors as code hosts make them from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }
