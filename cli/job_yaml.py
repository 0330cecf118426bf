"""The job file: strict YAML, all problems at once as ``file:line: key path: message``.

Values go through the same validator as a JSON request. YAML's guesses are narrowed: only plain
decimal numbers are numbers, keys are always text, and a value that YAML takes for a truth value
(``no``, ``on``) is told to be put in quotes. Anchors are followed up to a bounded size.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from broker import job_file
from broker.errors import TiresiasError
from broker.job_file_words import KeyPath, path_text
from broker.schemas.job import JobSpec, Problem

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_VALUES = 100_000
_MAX_DEPTH = 20
_TAGS = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\Z")
_REAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\Z")
_TRUE = frozenset(("true", "yes", "on"))
_FALSE = frozenset(("false", "no", "off"))


class JobFileError(TiresiasError):
    """A job file is not valid; the text has one line for each problem."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        super().__init__("\n".join(located(source, problem) for problem in problems))
        self.source = source
        self.problems = problems


class _TooLargeError(Exception):
    """The document expands to more values, or deeper, than any job needs."""


def located(source: str, problem: Problem) -> str:
    """Write a problem as compilers do, so that editors can jump to it."""
    place = source if problem.line is None else f"{source}:{problem.line}"
    return ": ".join(part for part in (place, problem.path, problem.message) if part)


def read(data: bytes, source: str, folder: str) -> list[JobSpec]:
    """Return the jobs of a file, one a document; raise `JobFileError` with all problems.

    ``folder`` is where relative folders of the file start, and the default ``workdir``.
    """
    problems: list[Problem] = []
    specs: list[JobSpec] = []
    try:
        for value, lines, doubts in _documents(_text(data)):
            job = with_folders(value, folder)
            found = doubts + job_file.validate_mapping(job, lines)
            if not found:
                specs.append(msgspec.convert(job, JobSpec))
            problems += found
    except JobFileError as error:
        problems += error.problems
    if not problems and not specs:
        problems.append(Problem(path="", message="the file has no job in it", line=1))
    if problems:
        raise JobFileError(source, sorted(problems, key=lambda problem: problem.line or 0))
    return specs


def with_folders(value: Any, folder: str) -> Any:
    """Return the job with its folders absolute, and with a ``workdir``."""
    if not isinstance(value, dict):
        return value
    whole = {"workdir": folder, **value}
    if isinstance(whole["workdir"], str) and whole["workdir"]:
        whole["workdir"] = _absolute(whole["workdir"], folder)
    checkpoint = whole.get("checkpoint")
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("dir"), str):
        whole["checkpoint"] = {**checkpoint, "dir": _absolute(checkpoint["dir"], folder)}
    return whole


def _absolute(path: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))  # noqa: PTH111, PTH118


def _text(data: bytes) -> str:
    if len(data) > MAX_FILE_BYTES:
        raise _failure(1, f"the file has {len(data)} bytes, the limit is {MAX_FILE_BYTES}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8: byte 0x{data[error.start]:02x}; save the file as UTF-8"
        raise _failure(line, message) from error


def _documents(text: str) -> Iterator[tuple[Any, dict[KeyPath, int], list[Problem]]]:
    """Yield (value, lines, problems) of each document that is not empty."""
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            reader = _Reader()
            value = reader.value_of(node, ())
            if value is not None:
                yield value, reader.lines, reader.problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _failure(mark.line + 1 if mark else 1, _syntax_message(error)) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise _failure(line, message) from error
    except (_TooLargeError, RecursionError) as error:
        raise _failure(1, "nested too deeply, or anchors that expand to too much") from error


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be read"
    if r"'\t'" in problem:
        return "a tab: indent with spaces"
    context = f" ({error.context})" if error.context else ""
    return f"not valid YAML: {problem}{context}"


def _failure(line: int, message: str) -> JobFileError:
    return JobFileError("", [Problem(path="", message=message, line=line)])


class _Reader:
    """Turns the nodes of one document into plain values, noting lines and doubtful places."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._values = 0

    def value_of(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the node's value; the line of a key is where the key stands."""
        self._values += 1
        if self._values > MAX_VALUES or len(path) > _MAX_DEPTH:
            raise _TooLargeError
        self.lines.setdefault(path, node.start_mark.line + 1)
        if not node.tag.startswith(_TAGS):
            self._note(node, path, f"tag {node.tag!r} is not supported")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value_of(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(key_node, path, "a key must be text, not a list or a map")
                continue
            key: str = key_node.value
            inner = (*path, key)
            if key in value:
                self._note(key_node, inner, f"key given twice, first on line {self.lines[inner]}")
                continue
            self.lines[inner] = key_node.start_mark.line + 1
            value[key] = self.value_of(value_node, inner)
        return value

    def _note(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        line = node.start_mark.line + 1
        where = path_text(path)
        self.problems.append(Problem(path=where, message=message, line=line))


def _scalar(node: yaml.ScalarNode) -> str | int | float | bool | None:
    text: str = node.value
    if node.style is not None or node.tag == f"{_TAGS}str":
        return text
    if node.tag == f"{_TAGS}null":
        return None
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _REAL.match(text) else text
