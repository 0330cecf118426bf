"""Snapshots of the core: three local files and three objects in the bucket, each self-checking.

A snapshot says which input and which decision it has come to. It is written under a temporary
name, synced, renamed and read back, so a file under its final name is whole or is skipped.
"""

import asyncio
import hashlib
import logging
import os
from pathlib import Path

import msgspec

from broker.bus import Bus
from broker.errors import BusError, TiresiasError
from broker.topology import SNAPSHOTS

KEEP = 3
VERSION = 1

_log = logging.getLogger(__name__)
_MAGIC = b"tiresias-snapshot"


class SnapshotError(TiresiasError):
    """A snapshot cannot be read: damaged, or of another version."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The core after input ``input_seq``; all its decisions are stored up to ``decision_seq``.

    ``input_at_ms`` is the log's time of that input: it tells a log from one that was started anew.
    """

    input_seq: int
    input_at_ms: int
    decision_seq: int
    core: bytes


def pack(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot: a header line with version and SHA-256, then the body."""
    body = msgspec.msgpack.encode(snapshot)
    return b"%s %d %s\n" % (_MAGIC, VERSION, _digest(body)) + body


def unpack(data: bytes) -> Snapshot:
    """Read what `pack` wrote; raises `SnapshotError`."""
    header, _, body = data.partition(b"\n")
    match header.split(b" "):
        case [magic, version, digest] if magic == _MAGIC:
            if version != b"%d" % VERSION:
                raise SnapshotError(f"version {version.decode('ascii', 'replace')}, not {VERSION}")
            if digest != _digest(body):
                raise SnapshotError("checksum differs")
            return msgspec.msgpack.decode(body, type=Snapshot)
    raise SnapshotError("no snapshot header")


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode("ascii")


class SnapshotStore:
    """Reads and writes snapshots in a local folder and in the bucket."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self._bus = bus
        self._folder = folder
        self._slots = {f"scheduler-{number}": -1 for number in range(KEEP)}
        """Object name -> input sequence held; -1 for nothing of use."""

    async def load(self) -> list[Snapshot]:
        """Return every readable snapshot, the newest first; unreadable ones are warned about."""
        found = await asyncio.to_thread(self._load_files)
        for name in self._slots:
            snapshot = await self._load_object(name)
            if snapshot is not None:
                self._slots[name] = snapshot.input_seq
                found += [snapshot] if snapshot not in found else []
        return sorted(found, key=lambda snapshot: -snapshot.input_seq)

    async def _load_object(self, name: str) -> Snapshot | None:
        try:
            data = await self._bus.object_get(SNAPSHOTS, name)
        except BusError as error:
            _log.warning("snapshot skipped", extra={"where": name, "problem": str(error)})
            return None
        return None if data is None else _unpacked(data, name)

    async def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot to both places; raises `OSError`, `SnapshotError` or `BusError`.

        The bucket is tried even when the disk fails.
        """
        data = await asyncio.to_thread(pack, snapshot)
        try:
            await asyncio.to_thread(self._save_file, data, snapshot.input_seq)
        finally:
            name = min(self._slots, key=lambda slot: self._slots[slot])
            await self._bus.object_put(SNAPSHOTS, name, data)
            self._slots[name] = snapshot.input_seq

    def _files(self) -> list[Path]:
        """Return the snapshot files, the newest first."""
        return sorted(self._folder.glob("snapshot-*.bin"), reverse=True)

    def _load_files(self) -> list[Snapshot]:
        found = []
        for path in self._files():
            try:
                snapshot = _unpacked(path.read_bytes(), path.name)
            except OSError as error:
                _log.warning(
                    "snapshot skipped", extra={"where": path.name, "problem": error.strerror}
                )
            else:
                found += [snapshot] if snapshot else []
        return found

    def _save_file(self, data: bytes, input_seq: int) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"snapshot-{input_seq:020d}.bin"
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        _sync_folder(self._folder)
        unpack(path.read_bytes())
        for old in self._files_beyond_keep(path):
            old.unlink(missing_ok=True)

    def _files_beyond_keep(self, newest: Path) -> list[Path]:
        """Return all but the newly written file and the `KEEP` - 1 written before it."""
        others = [path for path in self._files() if path != newest]
        others.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return others[KEEP - 1 :]


def _unpacked(data: bytes, where: str) -> Snapshot | None:
    try:
        return unpack(data)
    except (SnapshotError, msgspec.MsgspecError) as error:
        _log.warning("snapshot skipped", extra={"where": where, "problem": str(error)})
        return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
