"""Names of things as they appear on the wire: jobs, runs, tasks, nodes, users.

A job is numbered by its sequence in the input log; a run is ``<job>-<attempt>``.
Tokens go into subjects, so they hold only ``[a-z0-9_-]`` (NATS ADR-6).
"""

import re

from broker.errors import TiresiasError

_TOKEN = re.compile(r"[a-z0-9_-]{1,64}\Z")
_RUN_ID = re.compile(r"([1-9][0-9]{0,18})-([1-9][0-9]{0,18})\Z")


class InvalidIdError(TiresiasError):
    """An id or a name cannot be used in a subject."""

    def __init__(self, kind: str, value: str) -> None:
        super().__init__(f"invalid {kind} {value!r}: use 1 to 64 of a-z, 0-9, '_' and '-'")
        self.kind = kind
        self.value = value


def checked_token(kind: str, value: str) -> str:
    """Return ``value`` if it may stand in a subject, else raise `InvalidIdError`."""
    if not _TOKEN.match(value):
        raise InvalidIdError(kind, value)
    return value


def to_token(text: str) -> str:
    """Fold any text (a host name, an account name) into a subject token."""
    folded = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")[:64]
    return folded or "unnamed"


def run_id(job_id: int, attempt: int) -> str:
    """Name attempt number ``attempt`` (from 1) of a job."""
    return f"{job_id}-{attempt}"


def split_run_id(value: str) -> tuple[int, int]:
    """Return (job id, attempt) of a run id, or raise `InvalidIdError`."""
    match = _RUN_ID.match(value)
    if match is None:
        raise InvalidIdError("run id", value)
    return int(match[1]), int(match[2])


def is_run_id(value: str) -> bool:
    """Whether the value has the form of a run id."""
    return _RUN_ID.match(value) is not None


def task_name(role: str, index: int) -> str:
    """Name a task inside its run, for example ``worker-0``."""
    return f"{role}-{index}"
