"""Errors of the job file's JSON schema in plain words: the value seen, the limit, the remedy.

Values of ``env`` and ``run`` are never repeated, because everybody reads the problems of a job.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from broker.schemas.job import DURATION_PATTERN

KeyPath = tuple[str | int, ...]
Finding = tuple[KeyPath, str]
"""Where in the file, and what is wrong there."""

_SHOWN_CHARACTERS = 60
_UNSHOWN_KEYS = ("env", "run")
_TYPE_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "object": "a map of keys and values",
    "array": "a list",
}
_DURATION_WORDS = "a number and a unit (90s, 10m, 2h, 1d)"
_OTHER_NAMES = {
    "gpu": "gpus_per_worker",
    "gpus": "gpus_per_worker",
    "accelerators": "gpus_per_worker",
    "nodes": "workers",
    "num_nodes": "workers",
    "replicas": "workers",
    "instances": "workers",
    "command": "run",
    "commands": "run",
    "cmd": "run",
    "script": "run",
    "entrypoint": "run",
    "cwd": "workdir",
    "timeout": "time_limit",
    "max_duration": "time_limit",
    "stop_duration": "grace",
    "retries": "restart",
    "max_restarts": "restart",
    "tags": "labels",
}
"""What people who come from other schedulers call our keys."""


def findings(error: Any) -> Iterator[Finding]:
    """Turn one ``jsonschema`` error into findings; a choice into those of the likely branch."""
    path: KeyPath = tuple(error.absolute_path)
    seen = error.instance
    if "propertyNames" in error.absolute_schema_path:
        yield (*path, seen), _name_message(error)
        return
    match error.validator:
        case "anyOf":
            yield from _choice_findings(error, path)
        case "additionalProperties":
            known = tuple(error.schema["properties"])
            yield from (
                ((*path, key), _unknown_key_message(key, known)) for key in seen if key not in known
            )
        case "required":
            yield from (
                ((*path, key), "is missing") for key in error.validator_value if key not in seen
            )
        case "type":
            yield path, _type_message([_wanted(error)], seen, path)
        case _:
            yield path, _limit_message(error, path)


def _choice_findings(error: Any, path: KeyPath) -> Iterator[Finding]:
    """Tell the errors of the branch that has the value's type; if none has it, all types."""
    branches: dict[int, list[Any]] = {}
    for cause in error.context:
        branches.setdefault(cause.schema_path[0], []).append(cause)
    wanted: list[str] = []
    for causes in branches.values():
        mismatch = next((c for c in causes if c.validator == "type" and not c.path), None)
        if mismatch is None:
            for cause in causes:
                yield from findings(cause)
            return
        if mismatch.validator_value != "null":
            wanted.append(_wanted(mismatch))
    yield path, _type_message(wanted, error.instance, path)


def _wanted(type_error: Any) -> str:
    if type_error.schema.get("pattern") == DURATION_PATTERN:
        return _DURATION_WORDS
    return _TYPE_WORDS[type_error.validator_value]


def _type_message(wanted: Sequence[str], seen: object, path: KeyPath) -> str:
    is_quotable = _TYPE_WORDS["string"] in wanted and isinstance(seen, bool | int | float)
    hint = "; put it in quotes if it is text" if is_quotable else ""
    return f"must be {' or '.join(wanted)}, got {_described(seen, path)}{hint}"


def _name_message(error: Any) -> str:
    shown = shortened(repr(error.instance))
    match error.validator:
        case "pattern":
            return f"a name has only letters, digits and '_' and begins with no digit, got {shown}"
        case "maxLength":
            return f"a name has at most {error.validator_value} characters, got {shown}"
        case _:
            return "a name must not be empty"


def _limit_message(error: Any, path: KeyPath) -> str:
    limit, seen = error.validator_value, error.instance
    match error.validator:
        case "minimum":
            rule = f"must be at least {limit}"
        case "maximum":
            rule = f"must be at most {limit}"
        case "enum":
            rule = (
                f"must be {' or '.join(msgspec.json.encode(choice).decode() for choice in limit)}"
            )
        case "pattern" if limit == DURATION_PATTERN:
            rule = f"must be {_DURATION_WORDS}"
        case "minLength" | "minItems":
            return "must not be empty"
        case "maxLength":
            return f"has {len(seen)} characters, the limit is {limit}"
        case "maxItems" | "maxProperties":
            return f"has {len(seen)} entries, the limit is {limit}"
        case other:
            rule = f"breaks the rule {other} {limit}"
    return f"{rule}, got {_described(seen, path)}"


def _unknown_key_message(key: str, known: Sequence[str]) -> str:
    nearest = nearest_key(key, known)
    if nearest is None:
        return f"unknown key; valid keys: {', '.join(known)}"
    return f"unknown key; did you mean {nearest!r}?"


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """Return the valid key that was most likely meant, None if none is near."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key[:64]).lower()
    folded = re.sub(r"[^a-z0-9]+", "_", snake)
    usual = _OTHER_NAMES.get(folded)
    if usual in known:
        return usual
    close = difflib.get_close_matches(folded, known, n=1, cutoff=0.6)
    return close[0] if close else None


def path_text(path: KeyPath) -> str:
    """Write a key path as people do: ``restart.on_exit[2]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        shown = shortened(part if part.isprintable() and part else repr(part))
        text = f"{text}.{shown}" if text else shown
    return text


def shortened(text: str) -> str:
    """Cut a text that is too long to repeat."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _described(seen: object, path: KeyPath) -> str:
    if seen is None:
        return "nothing"
    if isinstance(seen, dict | list):
        return "a map" if isinstance(seen, dict) else "a list"
    kind = "text" if isinstance(seen, str) else "number"
    if isinstance(seen, bool):
        kind = "value"
    if path[:1] and path[0] in _UNSHOWN_KEYS:
        return f"a {kind}"
    shown = msgspec.json.encode(seen).decode() if isinstance(seen, bool) else repr(seen)
    return f"the {kind} {shortened(shown)}"
