"""The AsyncAPI document is valid by the specification's own schema."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.contract import npm_packages

pytestmark = pytest.mark.nats

ROOT = Path(__file__).parents[2]


def test_the_document_is_valid_asyncapi(tmp_path: Path) -> None:
    package = npm_packages.install(tmp_path, "@asyncapi/specs@6") / "node_modules/@asyncapi/specs"
    schema = json.loads((package / "schemas" / "3.0.0-without-$id.json").read_bytes())
    document = yaml.safe_load((ROOT / "docs" / "reference" / "asyncapi.yaml").read_text("utf-8"))
    validator = Draft7Validator(schema)
    assert [error.message for error in validator.iter_errors(document)] == []
    assert not validator.is_valid(document | {"operations": {"submit": {"action": "fetch"}}})
