"""One task's part of a save: ``data-<rank>.bin`` and ``manifest-<rank>.json``.

A state is any nesting of dicts with text keys, lists, numbers, text, None, bytes and arrays. The
arrays lie one after the other in the data file, each aligned to 64 bytes; the manifest has
their path, shape, dtype, place and checksums, and the rest of the state as JSON. Both files are
synced when `write_part` returns, and never changed afterwards.
"""

import json
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from tiresias.errors import CorruptCheckpointError, UsageError

FORMAT = 1
ALIGNMENT_BYTES = 64
CHUNK_BYTES = 16 * 1024 * 1024
_ARRAY = "$array"
_BYTES = "bytes"


@dataclass(frozen=True, kw_only=True)
class ArrayEntry:
    """Where one array lies in the data file. ``crc32`` has one checksum per 16 MiB."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    length: int
    crc32: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one task saved, read back and verified."""

    step: int
    rank: int
    ranks: int
    state: Any
    size_bytes: int


def data_name(rank: int) -> str:
    """Name the data file of a rank."""
    return f"data-{rank}.bin"


def manifest_name(rank: int) -> str:
    """Name the manifest of a rank; its presence means that the rank's part is whole."""
    return f"manifest-{rank}.json"


def write_part(folder: Path, state: Any, *, step: int, rank: int, ranks: int) -> int:
    """Write one task's part into ``folder`` and sync it; return its size in bytes.

    Raises OSError as the file system does, and `UsageError` for a state that cannot be written.
    """
    arrays: list[tuple[str, Any]] = []
    tree = _separate(state, "", arrays)
    with (folder / data_name(rank)).open("wb", buffering=1 << 20) as file:
        entries = [_write_array(file, path, value) for path, value in arrays]
        size_bytes = file.tell()
        _sync(file)
    content = json.dumps(
        {
            "step": step,
            "rank": rank,
            "ranks": ranks,
            "data_bytes": size_bytes,
            "arrays": [asdict(entry) for entry in entries],
            "state": tree,
            "versions": _versions(),
        },
        separators=(",", ":"),
    )
    manifest = {"format": FORMAT, "crc32": zlib.crc32(content.encode()), "content": content}
    unfinished = folder / f"{manifest_name(rank)}.unfinished"
    with unfinished.open("w", encoding="utf-8") as file_of_text:
        json.dump(manifest, file_of_text)
        _sync(file_of_text)
    unfinished.rename(folder / manifest_name(rank))
    sync_folder(folder)
    return size_bytes + len(content)


def read_part(folder: Path, rank: int) -> Part:
    """Read one task's part and check every checksum.

    Raises `CorruptCheckpointError` when it is not what was written, OSError when it cannot be
    read.
    """
    content = _read_manifest(folder / manifest_name(rank))
    data = folder / data_name(rank)
    arrays = []
    with data.open("rb") as file:
        for fields in content["arrays"]:
            entry = ArrayEntry(
                **{**fields, "shape": tuple(fields["shape"]), "crc32": tuple(fields["crc32"])}
            )
            arrays.append(_read_array(file, data, entry))
    return Part(
        step=content["step"],
        rank=content["rank"],
        ranks=content["ranks"],
        state=_join(content["state"], arrays),
        size_bytes=content["data_bytes"],
    )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _separate(value: Any, path: str, arrays: list[tuple[str, Any]]) -> Any:
    """Return the state as JSON, with each array replaced by its number in ``arrays``."""
    if value is None or (isinstance(value, bool | int | float | str) and not _is_array(value)):
        return value
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise UsageError(f"state{path}: key {key!r} cannot be saved, use text keys")
        return {key: _separate(item, f"{path}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_separate(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, bytes | bytearray) or _is_array(value):
        arrays.append((path.lstrip("/"), value))
        return {_ARRAY: len(arrays) - 1}
    raise UsageError(
        f"state{path}: a {type(value).__name__} cannot be saved, "
        "use numbers, text, bytes, lists, dicts and arrays"
    )


def _join(tree: Any, arrays: list[Any]) -> Any:
    if isinstance(tree, list):
        return [_join(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _ARRAY in tree:
        return arrays[tree[_ARRAY]]
    return {key: _join(item, arrays) for key, item in tree.items()}


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__")


def _write_array(file: IO[bytes], path: str, value: Any) -> ArrayEntry:
    shape, dtype, data = _raw(path, value)
    file.write(bytes(-file.tell() % ALIGNMENT_BYTES))
    offset = file.tell()
    checksums = []
    for chunk in _chunks(data):
        file.write(chunk)
        checksums.append(zlib.crc32(chunk))
    return ArrayEntry(
        path=path,
        shape=shape,
        dtype=dtype,
        offset=offset,
        length=data.nbytes,
        crc32=tuple(checksums),
    )


def _raw(path: str, value: Any) -> tuple[tuple[int, ...], str, memoryview]:
    """Return an array's shape, dtype name and bytes in C order, without a copy if possible."""
    if isinstance(value, bytes | bytearray):
        return (len(value),), _BYTES, memoryview(value)
    import numpy as np  # noqa: PLC0415 - only a job that saves arrays needs numpy

    array = np.asarray(value)
    if array.dtype.hasobject:
        raise UsageError(f"state/{path}: an array of Python objects cannot be saved")
    flat = np.ascontiguousarray(array).reshape(-1)
    return array.shape, array.dtype.name, flat.view(np.uint8).data


def _read_array(file: IO[bytes], data: Path, entry: ArrayEntry) -> Any:
    buffer = bytearray(entry.length)
    file.seek(entry.offset)
    if file.readinto(buffer) != entry.length:  # type: ignore[attr-defined]
        raise CorruptCheckpointError(f"{data} ends inside {entry.path!r}")
    if tuple(zlib.crc32(chunk) for chunk in _chunks(memoryview(buffer))) != entry.crc32:
        raise CorruptCheckpointError(f"{data}: checksum of {entry.path!r} does not match")
    if entry.dtype == _BYTES:
        return bytes(buffer)
    import numpy as np  # noqa: PLC0415 - only a job that saved arrays needs numpy

    return np.frombuffer(buffer, dtype=np.dtype(entry.dtype)).reshape(entry.shape)


def _chunks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, data.nbytes, CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        content: str = manifest["content"]
        if manifest["format"] != FORMAT:
            raise CorruptCheckpointError(
                f"{path} has format {manifest['format']}, this version reads {FORMAT}"
            )
        if zlib.crc32(content.encode()) != manifest["crc32"]:
            raise CorruptCheckpointError(f"{path}: checksum does not match")
        return dict(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(f"{path} is not a manifest: {error}") from error


def _versions() -> dict[str, str]:
    """Versions of the frameworks this process has loaded, for the person who reads the file."""
    loaded = {name: sys.modules.get(name) for name in ("numpy", "tensorflow", "keras", "tf_keras")}
    versions = {name: getattr(module, "__version__", None) for name, module in loaded.items()}
    return {
        "python": sys.version.split()[0],
        **{name: str(version) for name, version in versions.items() if version},
    }
