"""Everything wrong with a job request at once, with the nearest valid key.

msgspec stops at the first error and is the fast path; this slow path runs only on bad input. It
walks the JSON schema generated from `JobSpec`, so the rules stay in one place; `limit_problems`
adds what types cannot say.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from broker import job_file_words
from broker.job_file_words import Finding, KeyPath
from broker.schemas.job import JobSpec, Problem, duration_ms

MAX_GANG_GPUS = 16_384
MAX_ENV_BYTES = 512 * 1024
MAX_STRING_BYTES = 128 * 1024 - 1
"""Linux's longest argument or ``K=V`` (MAX_ARG_STRLEN without its end mark)."""
MAX_REQUEST_BYTES = 1024 * 1024 - 4096
"""NATS's default largest message, less room for headers."""
MAX_TIME_LIMIT = "3650d"
MAX_GRACE = "1d"
MAX_PROBLEMS = 50
_MAX_DEPTH = 20
"""Far more than any valid job has, far less than Python's recursion limit."""
_TOO_DEEP = "the request is nested too deeply"


def problems_of(data: bytes, fallback: str) -> tuple[str, tuple[Problem, ...]]:
    """Return the name in a bad JSON request ("" if none) and all its problems.

    ``fallback`` is the fast path's error, told if this walk finds nothing.
    """
    if len(data) > MAX_REQUEST_BYTES:
        return "", (size_problem(len(data)),)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return "", (Problem(path="", message=f"the request is not valid JSON: {error}"),)
    except RecursionError:
        return "", (Problem(path="", message=_TOO_DEEP),)
    problems = validate_mapping(value, {}) or [Problem(path="", message=fallback)]
    name = value.get("name") if isinstance(value, dict) else None
    return name[:128] if isinstance(name, str) else "", tuple(problems)


def size_problem(size_bytes: int) -> Problem:
    """Tell that a whole request does not fit into one message."""
    return Problem(
        path="",
        message=f"the request has {size_bytes} bytes, the limit is {MAX_REQUEST_BYTES}: "
        "put long scripts and data into files that the nodes can read",
    )


def validate_mapping(value: object, lines: Mapping[KeyPath, int]) -> list[Problem]:
    """Return all problems of a job given as plain Python values, in order of their lines.

    ``lines`` tells the line of a key path where the source has lines. At most `MAX_PROBLEMS`
    are listed; the last then says how many more there are.
    """
    if _is_too_deep(value):
        return [Problem(path="", message=_TOO_DEEP, line=_line_of((), lines))]
    found = list(_schema_findings(value))
    if isinstance(value, dict):
        found += limit_findings(_sound_part(value, {path[0] for path, _ in found if path}))
    problems = [
        Problem(path=job_file_words.path_text(path), message=message, line=_line_of(path, lines))
        for path, message in dict.fromkeys(found)
    ]
    problems.sort(key=lambda problem: problem.line or 0)
    if len(problems) > MAX_PROBLEMS:
        more = Problem(path="", message=f"and {len(problems) - MAX_PROBLEMS} more problems")
        problems = [*problems[:MAX_PROBLEMS], more]
    return problems


def limit_problems(spec: JobSpec) -> tuple[Problem, ...]:
    """Return what is wrong with a spec of the right types; empty if it is a valid job."""
    return tuple(
        Problem(path=job_file_words.path_text(path), message=message)
        for path, message in limit_findings(spec)
    )


def limit_findings(spec: JobSpec) -> Iterator[Finding]:
    """Yield each broken rule across or beyond the types."""
    if not spec.name.isprintable() or not spec.name.strip():
        yield ("name",), "must be printable and not blank"
    if spec.gpus > MAX_GANG_GPUS:
        yield (
            ("workers",),
            f"workers * gpus_per_worker must be at most {MAX_GANG_GPUS}, got {spec.gpus}",
        )
    yield from _environment_findings(spec.env)
    yield from _command_findings(spec.run)
    yield from _duration_findings(spec)
    yield from _folder_findings(("workdir",), spec.workdir)
    yield from _folder_findings(("checkpoint", "dir"), spec.checkpoint.dir)


def _environment_findings(env: Mapping[str, str]) -> Iterator[Finding]:
    total_bytes = 0
    for key, text in env.items():
        size_bytes = len(f"{key}={text}".encode())
        total_bytes += size_bytes
        yield from _string_findings(("env", key), text, size_bytes)
    if total_bytes > MAX_ENV_BYTES:
        yield ("env",), f"has {total_bytes} bytes in all, the limit is {MAX_ENV_BYTES}"


def _command_findings(run: str | tuple[str, ...]) -> Iterator[Finding]:
    if isinstance(run, str):
        yield from _string_findings(("run",), run, 0)
        return
    if not run[0]:
        yield ("run", 0), "the command must not be empty"
    for index, argument in enumerate(run):
        yield from _string_findings(("run", index), argument, len(argument.encode()))


def _string_findings(path: KeyPath, text: str, size_bytes: int) -> Iterator[Finding]:
    if "\0" in text:
        yield path, "must not contain a NUL character"
    if size_bytes > MAX_STRING_BYTES:
        yield path, f"has {size_bytes} bytes, the limit is {MAX_STRING_BYTES}"


def _duration_findings(spec: JobSpec) -> Iterator[Finding]:
    limit_ms = spec.time_limit_ms
    if limit_ms is not None and not 0 < limit_ms <= duration_ms(MAX_TIME_LIMIT):
        yield (
            ("time_limit",),
            f"must be above 0 and at most {MAX_TIME_LIMIT}, got {spec.time_limit!r}",
        )
    if spec.grace_ms > duration_ms(MAX_GRACE):
        yield ("grace",), f"must be at most {MAX_GRACE}, got {spec.grace!r}"


def _folder_findings(path: KeyPath, folder: str | None) -> Iterator[Finding]:
    if folder is not None and (not folder.startswith("/") or "\0" in folder):
        yield path, f"must be an absolute path, got {job_file_words.shortened(repr(folder))}"


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a job file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(JobSpec),
    }


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415 - only for bad input

    strict_types = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    strict: Any = validators.extend
    return strict(Draft202012Validator, type_checker=strict_types)(schema())


def _schema_findings(value: object) -> Iterator[Finding]:
    for error in _validator().iter_errors(value):
        yield from job_file_words.findings(error)


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for whole in level
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
        ]
    return bool(level)


def _sound_part(value: Mapping[str, Any], bad_keys: set[str | int]) -> JobSpec:
    """Return a spec of the keys that are right so far, so that limits are told with the rest."""
    sound = {key: part for key, part in value.items() if key not in bad_keys}
    return msgspec.convert({"name": "unnamed", "run": "true", **sound}, JobSpec)


def _line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """Return the line of a key path, or that of the nearest key around it."""
    around = (path[:end] for end in range(len(path), -1, -1))
    return next((lines[part] for part in around if part in lines), None)
