"""One sample value of any struct, with every field filled, the same each time.

Readable on purpose (node-1, ada, worker-0): samples serve as examples in the reference and as
stored messages of the compatibility test.
"""

from typing import Any

import msgspec
from msgspec import inspect

AT_MS = 1_767_225_600_000
BY_FIELD: dict[str, Any] = {
    "at_ms": AT_MS,
    "action": "wait",
    "attempt": 1,
    "attempts": 2,
    "boot_id": "5f0c6b6e-5d1e-4c58-9f5e-0f4f5d1f2a11",
    "cause_seq": 41,
    "cluster": {"worker": ["10.0.0.1:20000", "10.0.0.2:20000"]},
    "dir": "/data/checkpoints/resnet50",
    "epoch": 3,
    "every_steps": 500,
    "exit_code": 75,
    "gpu_id": "GPU-8a5f2c1e-0000-4000-8000-000000000001",
    "gpu_ids": ["GPU-8a5f2c1e-0000-4000-8000-000000000001"],
    "gpus_per_worker": 1,
    "grace": "60s",
    "grace_ms": 60_000,
    "host": "10.0.0.1",
    "index": 0,
    "job_id": 7,
    "limits_gpu_ms": [3_600_000],
    "memory_bytes": 17_179_869_184,
    "metrics": {"loss": 0.3125},
    "name": "resnet50",
    "never_on_exit": [2],
    "next_offset": 13,
    "node": "node-1",
    "nodes": ["node-1", "node-2"],
    "nvlink_peers": ["GPU-8a5f2c1e-0000-4000-8000-000000000002"],
    "offset": 0,
    "on_exit": [33],
    "owners": {"GPU-8a5f2c1e-0000-4000-8000-000000000001": "6-1"},
    "path": "workers",
    "phase": "running",
    "pids": {"worker-0": 4242},
    "placement": {"node-1": ["GPU-8a5f2c1e-0000-4000-8000-000000000001"]},
    "ports": {"worker-0": 20000},
    "promote_knob": 4.0,
    "queue_limits_gpu_ms": [3_600_000],
    "rank": 0,
    "role": "worker",
    "run": ["python", "train.py"],
    "run_id": "7-1",
    "state": "up",
    "step": 1200,
    "task": "worker-0",
    "tasks": {"worker-0": "node-1"},
    "tensor_bytes": [9_437_184, 256],
    "time_limit": "12h",
    "total_steps": 5000,
    "unhealthy": {"GPU-8a5f2c1e-0000-4000-8000-000000000001": "Lost"},
    "user": "ada",
    "workdir": "/data/resnet50",
    "workers": 2,
}


def sample_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON object of a complete, valid value of ``struct``."""
    value = _object(inspect.type_info(struct))
    msgspec.convert(value, struct)
    assert isinstance(value, dict)
    return value


def _object(info: Any) -> dict[str, Any]:
    tagged = {info.tag_field: info.tag} if info.tag_field else {}
    types = {field.name: field.type for field in msgspec.structs.fields(info.cls)}
    return tagged | {field.encode_name: _field(field, types[field.name]) for field in info.fields}


def _field(field: inspect.Field, annotation: Any) -> Any:
    if field.name.endswith("_at_ms"):
        return AT_MS
    try:
        msgspec.convert(BY_FIELD[field.name], annotation)
    except (KeyError, msgspec.ValidationError):
        return _value(field.type, field.name)
    return BY_FIELD[field.name]


def _value(info: Any, name: str) -> Any:  # noqa: C901 - one line per kind of type
    match info:
        case inspect.Metadata():
            return _value(info.type, name)
        case inspect.UnionType():
            return _value(next(t for t in info.types if not isinstance(t, inspect.NoneType)), name)
        case inspect.StructType():
            return _object(info)
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case inspect.LiteralType():
            return info.values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return info.ge or 1
        case inspect.FloatType():
            return 0.5
        case inspect.StrType():
            return f"{name.replace('_', ' ')}"
        case inspect.BytesType():
            return "c3RlcCAxMiBsb3NzIDAuMw=="
        case inspect.VarTupleType():
            return [_value(info.item_type, name)]
        case inspect.DictType():
            return {_value(info.key_type, "key"): _value(info.value_type, "value")}
    raise TypeError(f"no sample for {info!r}")
