"""Requests answered at once over core NATS: reading logs, explaining a job."""

import msgspec

MAX_LOG_CHUNK_BYTES = 256 * 1024


class LogRead(msgspec.Struct, frozen=True, kw_only=True):
    """Read a task's log from ``offset`` (bytes since its start).

    The launcher answers as soon as there is something to read, at the latest after ``wait_ms``.
    """

    run_id: str
    task: str
    offset: int = 0
    max_bytes: int = MAX_LOG_CHUNK_BYTES
    wait_ms: int = 0


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a log exactly as printed (base64 in JSON).

    ``offset`` is where ``data`` really starts: later than asked for where rotation dropped older
    bytes. ``final``: the task is over and nothing comes after ``next_offset``.
    """

    data: bytes = b""
    offset: int = 0
    next_offset: int = 0
    final: bool = False
    error: str = ""


class ExplainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the leading scheduler why a job is where it is."""

    job_id: int


class ApiError(msgspec.Struct, frozen=True, kw_only=True, tag="error", tag_field="type"):
    """A request that cannot be answered, with a reason fit for people."""

    message: str
