"""Messages stored by any earlier version can still be read, and nothing in them is lost."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.codec import decode, encode
from scripts.messages import DOCUMENTS, MESSAGES, wire_name

FOLDER = Path(__file__).parent / "messages"
STRUCTS = {wire_name(struct): struct for struct in (*MESSAGES, *DOCUMENTS)}
SAMPLES = sorted(FOLDER.glob("*.json"))


def test_every_message_type_has_a_stored_sample() -> None:
    stored = {path.stem for path in SAMPLES}
    assert stored == set(STRUCTS), "missing ones: make samples; a message is never taken away"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_stored_sample_decodes_and_keeps_every_field(path: Path) -> None:
    data = path.read_bytes()
    message = decode(STRUCTS[path.stem], data)
    assert missing_from(json.loads(encode(message)), json.loads(data)) == []


@pytest.mark.parametrize("struct", MESSAGES, ids=wire_name)
def test_a_message_from_a_newer_version_is_read_without_its_new_fields(
    struct: type[msgspec.Struct],
) -> None:
    sample = json.loads((FOLDER / f"{wire_name(struct)}.json").read_bytes())
    newer = json.dumps(sample | {"a_field_of_the_future": [1, 2]}).encode()
    assert decode(struct, newer) == decode(struct, json.dumps(sample).encode())


def missing_from(seen: Any, stored: Any, path: str = "") -> list[str]:
    """Paths of ``stored`` whose value did not come through decoding and encoding again."""
    if isinstance(stored, dict):
        gone = [f"{path}.{key}" for key in stored if key not in seen]
        shared = [key for key in stored if key in seen]
        return gone + [
            lost for key in shared for lost in missing_from(seen[key], stored[key], f"{path}.{key}")
        ]
    if isinstance(stored, list):
        if len(seen) != len(stored):
            return [path]
        pairs = enumerate(zip(seen, stored, strict=True))
        return [lost for i, (a, b) in pairs for lost in missing_from(a, b, f"{path}[{i}]")]
    return [] if seen == stored else [path]
