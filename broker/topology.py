"""The streams and buckets of Tiresias as data, and `ensure`, which makes the server match them.

The fields are those of the JetStream API. A stream that exists is updated in place; a difference
that cannot be updated raises `TopologyError`: a stream is never silently different.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from broker import subjects
from broker.errors import BusError, TopologyError

logger = logging.getLogger(__name__)

INPUT = "TIRESIAS_INPUT"
DECISIONS = "TIRESIAS_DECISIONS"
DEAD = "TIRESIAS_DEAD"
TELEMETRY = "TIRESIAS_TELEMETRY"
JOBS = "tiresias_jobs"
NODES = "tiresias_nodes"
LEASE = "tiresias_lease"
SNAPSHOTS = "tiresias_snapshots"

MIB = 1024 * 1024
DEFAULT_LOG_BYTES = 4 * 1024 * MIB
_SECOND_NS = 1_000_000_000
_SCHEMA = "1"
_FIXED_FIELDS = ("storage", "retention", "max_consumers")


class StreamDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's configuration, in the words of the JetStream API. Durations are nanoseconds."""

    name: str
    subjects: tuple[str, ...]
    storage: str = "file"
    retention: str = "limits"
    discard: str = "new"
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    max_consumers: int = -1
    persist_mode: str = ""
    """``async``: an acknowledgement does not wait for the disk (from server 2.12, older ones ignore
    it). Set when the stream is created; it cannot be changed later."""
    num_replicas: int = 1
    duplicate_window: int = 120 * _SECOND_NS
    allow_direct: bool = True
    allow_rollup_hdrs: bool = False
    allow_msg_ttl: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    metadata: dict[str, str] = msgspec.field(
        default_factory=lambda: {"schema": _SCHEMA, "owner": "tiresias"}
    )

    def config(self) -> dict[str, Any]:
        """Return the JSON object that the JetStream API takes."""
        config: dict[str, Any] = msgspec.to_builtins(self)
        if not self.persist_mode:
            del config["persist_mode"]
        return config


class StreamAdmin(Protocol):
    """What `ensure` needs of a bus. Refusals by the server raise `BusError` with its words."""

    async def stream_config(self, name: str) -> Mapping[str, Any] | None: ...

    async def create_stream(self, config: Mapping[str, Any]) -> None: ...

    async def update_stream(self, config: Mapping[str, Any]) -> None: ...

    def keep_stream(self, config: Mapping[str, Any]) -> None:
        """Create the stream again after a reconnect if the server forgot it."""
        ...


def kv_stream(bucket: str) -> str:
    """The stream behind a KV bucket (NATS ADR-8)."""
    return f"KV_{bucket}"


def kv_subject(bucket: str, key: str) -> str:
    """The subject behind a key of a KV bucket, or behind a pattern of keys."""
    return f"$KV.{bucket}.{key}"


def definitions(
    *, replicas: int = 1, max_log_bytes: int = DEFAULT_LOG_BYTES
) -> tuple[StreamDefinition, ...]:
    """All streams, those of the buckets included. ``max_log_bytes`` bounds each of both logs."""
    return (
        _log(INPUT, (subjects.JOBS_ALL, subjects.INPUTS_ALL), replicas, max_log_bytes),
        _log(
            DECISIONS,
            (subjects.LOG_ALL, subjects.COMMANDS_ALL, subjects.FACTS_ALL),
            replicas,
            max_log_bytes,
        ),
        StreamDefinition(
            name=DEAD,
            subjects=(subjects.DEAD_ALL,),
            discard="old",
            max_bytes=256 * MIB,
            max_age=30 * 24 * 3_600 * _SECOND_NS,
            num_replicas=replicas,
        ),
        StreamDefinition(
            name=TELEMETRY,
            subjects=(subjects.TELEMETRY_ALL,),
            storage="memory",
            discard="old",
            max_bytes=64 * MIB,
            max_msgs_per_subject=1,
        ),
        *(_bucket(bucket, replicas) for bucket in (JOBS, NODES, LEASE)),
        StreamDefinition(
            name=f"OBJ_{SNAPSHOTS}",
            subjects=(f"$O.{SNAPSHOTS}.C.>", f"$O.{SNAPSHOTS}.M.>"),
            allow_rollup_hdrs=True,
            num_replicas=replicas,
        ),
    )


def _log(
    name: str, captured: tuple[str, ...], replicas: int, max_log_bytes: int
) -> StreamDefinition:
    """A log that is never cut by itself: when it is full, appends fail."""
    return StreamDefinition(
        name=name,
        subjects=captured,
        max_bytes=max_log_bytes,
        max_consumers=10_000,
        num_replicas=replicas,
        duplicate_window=300 * _SECOND_NS,
        allow_msg_ttl=True,
        deny_delete=True,
    )


def _bucket(bucket: str, replicas: int) -> StreamDefinition:
    """Views are written again after a crash of the server; waiting for the disk buys nothing."""
    return StreamDefinition(
        name=kv_stream(bucket),
        subjects=(kv_subject(bucket, ">"),),
        max_msgs_per_subject=1,
        persist_mode="" if bucket == LEASE else "async",
        num_replicas=replicas,
        allow_rollup_hdrs=True,
        deny_delete=True,
    )


async def ensure(
    admin: StreamAdmin, *, replicas: int = 1, max_log_bytes: int = DEFAULT_LOG_BYTES
) -> None:
    """Create what is missing and update what differs.

    Never lowers the number of replicas. Streams in memory are created again after each reconnect,
    for they die with their server.
    """
    for definition in definitions(replicas=replicas, max_log_bytes=max_log_bytes):
        await _ensure_stream(admin, definition)
        if definition.storage == "memory":
            admin.keep_stream(definition.config())


async def _ensure_stream(admin: StreamAdmin, definition: StreamDefinition) -> None:
    wanted = definition.config()
    there = await admin.stream_config(definition.name)
    if there is None:
        await _checked(definition.name, {}, admin.create_stream, wanted)
        return
    wanted["num_replicas"] = max(wanted["num_replicas"], there.get("num_replicas", 1))
    wanted.pop("persist_mode", None)
    difference = differences(there, wanted)
    if not difference:
        return
    for field in _FIXED_FIELDS:
        if field in difference:
            raise TopologyError(_describe(definition.name, {field: difference[field]}))
    logger.info("updating stream: %s", _describe(definition.name, difference))
    await _checked(definition.name, difference, admin.update_stream, {**there, **wanted})


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return field -> (value there, value wanted), for the fields that we define."""
    return {
        field: (there.get(field), value)
        for field, value in wanted.items()
        if not _same(field, there.get(field), value)
    }


def _same(field: str, there: Any, wanted: Any) -> bool:
    if field == "subjects":
        return sorted(there or ()) == sorted(wanted)
    if field == "metadata":
        return dict(wanted).items() <= dict(there or {}).items()
    return bool((there or False) == wanted if isinstance(wanted, bool) else there == wanted)


def _describe(name: str, difference: Mapping[str, tuple[Any, Any]]) -> str:
    fields = ", ".join(
        f"{field} is {there!r}, wanted {wanted!r}" for field, (there, wanted) in difference.items()
    )
    return f"stream {name}: {fields}"


async def _checked(
    name: str, difference: Mapping[str, tuple[Any, Any]], change: Any, config: Mapping[str, Any]
) -> None:
    """Make a change; the server's refusal names the stream and what was wanted."""
    try:
        await change(config)
    except BusError as error:
        if isinstance(error, TopologyError) or not difference:
            size = f"max_bytes {config['max_bytes']}"
            raise TopologyError(f"stream {name} ({size}) was refused: {error}") from error
        raise TopologyError(f"{_describe(name, difference)}; refused: {error}") from error
