"""The launcher's memory on disk: an append-only file of JSON lines, and the book it folds into.

A record is in the file as soon as `record` returns, which a killed launcher survives; `sync`
returns when it is on the disk, which a power cut survives. Many runs share one sync. A torn last
line is what a power cut left of a record that nobody had acted on.
"""

import asyncio
import os
from pathlib import Path

import msgspec

from broker.errors import TiresiasError
from launcher.core.run_state import AnyRecord, Book

COMPACT_ABOVE_BYTES = 32 * 1024 * 1024
_DECODER = msgspec.json.Decoder(AnyRecord | Book)
_ENCODER = msgspec.json.Encoder()


class JournalDamagedError(TiresiasError):
    """The journal cannot be read; guessing which processes run would be worse than stopping."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(
            f"journal {str(path)!r} is damaged in line {line}: {problem}; "
            "stop the processes of this node's runs and move the file away"
        )


class Journal:
    """The one writer of the file. ``book`` is always what the file folds into."""

    def __init__(self, path: Path) -> None:
        """Read and compact the file, creating it if it is missing."""
        self._path = path
        self.book = _read(path)
        _write_synced(self._temporary, _line(self.book))
        self._file = self._install()
        self._written = self._synced = 0
        self._commit: asyncio.Task[None] | None = None
        self._disk = asyncio.Lock()
        self._overlap: list[bytes] | None = None

    def record(self, record: AnyRecord) -> None:
        """Fold the record into the book and append it to the file."""
        self.book.apply(record)
        line = _line(record)
        os.write(self._file, line)
        self._written += 1
        if self._overlap is not None:
            self._overlap.append(line)

    async def sync(self) -> None:
        """Return when everything recorded so far is on the disk."""
        wanted = self._written
        while self._synced < wanted:
            if self._commit is None:
                self._commit = asyncio.create_task(self._commit_all())
            await asyncio.shield(self._commit)

    async def compact(self) -> None:
        """Shrink a file that has grown large to what the book holds; others go on recording."""
        if os.fstat(self._file).st_size < COMPACT_ABOVE_BYTES:
            return
        self._overlap = []
        await asyncio.to_thread(_write_synced, self._temporary, _line(self.book))
        async with self._disk:
            lines, self._overlap = self._overlap, []
            await asyncio.to_thread(_append_synced, self._temporary, lines)
            old, self._file = self._file, self._install()
            os.close(old)
            for line in self._overlap:
                os.write(self._file, line)
            self._overlap = None

    async def close(self) -> None:
        await self.sync()
        os.close(self._file)

    @property
    def _temporary(self) -> Path:
        return self._path.with_suffix(".new")

    def _install(self) -> int:
        """Put the new file in the place of the old one, and open it."""
        self._temporary.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return os.open(self._path, os.O_WRONLY | os.O_APPEND)

    async def _commit_all(self) -> None:
        try:
            async with self._disk:
                covered = self._written
                await asyncio.to_thread(os.fdatasync, self._file)
                self._synced = covered
        finally:
            self._commit = None


def _line(record: AnyRecord | Book) -> bytes:
    return _ENCODER.encode(record) + b"\n"


def _read(path: Path) -> Book:
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    book = Book()
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = _DECODER.decode(line)
        except msgspec.MsgspecError as error:
            raise JournalDamagedError(path, number, str(error)) from error
        if isinstance(record, Book):
            book = record
        else:
            book.apply(record)
    return book


def _write_synced(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write_all(file, data)
        os.fsync(file)
    finally:
        os.close(file)


def _append_synced(path: Path, lines: list[bytes]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        _write_all(file, b"".join(lines))
        os.fdatasync(file)
    finally:
        os.close(file)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
