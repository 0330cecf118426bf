"""The store of saves: a folder with one ``step-<N>/`` per save, each complete or invisible.

A save is written under a temporary name that only this attempt uses, synced, renamed to
``step-<N>``, and the folder synced. In a gang every rank writes its part into the same
temporary folder and rank 0 renames it when all parts are there. Reading takes the newest save
whose checksums match. A committed file is never written again, only removed.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiresias.errors import CheckpointError, CheckpointMismatchError, CorruptCheckpointError
from tiresias.part import Part, manifest_name, read_part, sync_folder, write_part

GANG_TIMEOUT_S = 30.0
"""How long the ranks of a gang wait for one another's parts of a save."""

_POLL_S = 0.01
_STEP = re.compile(r"step-([0-9]+)\Z")
_TEMPORARY = re.compile(r"\.step-.*\.tmp\Z")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete save, read back: this task's state and, in a gang, that of rank 0."""

    step: int
    state: Any
    first_state: Any
    path: Path


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A save that is complete on disk."""

    step: int
    path: Path
    size_bytes: int


class CheckpointStore:
    """Saves and restores one task's state. Not safe to call from two threads at once."""

    def __init__(
        self,
        folder: Path,
        *,
        write_token: str,
        keep: int = 2,
        rank: int = 0,
        ranks: int = 1,
        gang_timeout_s: float = GANG_TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._write_token = write_token
        self._keep = keep
        self._rank = rank
        self._ranks = ranks
        self._waits = max(1, round(gang_timeout_s / _POLL_S))
        self._sleep = sleep
        self._saves = 0
        self._newest: Saved | None = None

    def steps(self) -> list[int]:
        """Return the steps of all committed saves, newest first, good or not."""
        if not self._folder.is_dir():
            return []
        matches = (_STEP.match(path.name) for path in self._folder.iterdir())
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def newest(self) -> Checkpoint | None:
        """Read the newest whole save, or None. What is not whole is named on stderr and skipped.

        Raises `CheckpointMismatchError` if it was written by another number of workers.
        """
        self.remove_unfinished()
        for step in self.steps():
            path = self._path(step)
            try:
                checkpoint = self._read(step)
            except (CorruptCheckpointError, OSError) as error:
                sys.stderr.write(f"tiresias: ignoring the save of step {step}: {error}\n")
                continue
            self._newest = Saved(step=step, path=path, size_bytes=0)
            return checkpoint
        return None

    def save(self, step: int, state: Any) -> Saved:
        """Write a save and commit it; return when it is complete.

        In a gang all ranks must save the same steps in the same order. Raises `CheckpointError`
        if it cannot be completed; earlier saves are then untouched.
        """
        if self._newest is not None and self._newest.step == step:
            return self._newest
        self._saves += 1
        temporary = self._folder / f".step-{step}.{self._write_token}.{self._saves}.tmp"
        try:
            temporary.mkdir(parents=True, exist_ok=True)
            size_bytes = write_part(temporary, state, step=step, rank=self._rank, ranks=self._ranks)
            self._commit(temporary, step)
        except OSError as error:
            self._discard(temporary)
            problem = error.strerror or str(error)
            raise CheckpointError(
                f"cannot save step {step} in {self._folder}: {problem}; {self._what_remains()}"
            ) from error
        except CheckpointError:
            self._discard(temporary)
            raise
        self._newest = Saved(step=step, path=self._path(step), size_bytes=size_bytes)
        return self._newest

    def remove_unfinished(self) -> None:
        """Remove what earlier attempts left half written; in a gang only rank 0 does."""
        if self._rank != 0 or not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if _TEMPORARY.match(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def _read(self, step: int) -> Checkpoint:
        """Read all parts, so that all ranks come to the same verdict; keep two."""
        path = self._path(step)
        first = read_part(path, 0)
        if first.ranks != self._ranks:
            raise CheckpointMismatchError(
                f"{path} was saved by {first.ranks} workers, this run has {self._ranks}"
            )
        own = first
        for rank in range(1, self._ranks):
            part: Part = read_part(path, rank)
            own = part if rank == self._rank else own
        return Checkpoint(step=step, state=own.state, first_state=first.state, path=path)

    def _commit(self, temporary: Path, step: int) -> None:
        final = self._path(step)
        if self._rank != 0:
            self._wait_for(final / manifest_name(0), f"rank 0 did not commit step {step}")
            return
        for rank in range(1, self._ranks):
            self._wait_for(
                temporary / manifest_name(rank),
                f"rank {rank} did not save step {step}: all ranks must save at the same step",
            )
        replaced = self._folder / f"{temporary.stem}.replaced.tmp"
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        sync_folder(self._folder)
        shutil.rmtree(replaced, ignore_errors=True)
        self._prune(step)

    def _prune(self, newest_step: int) -> None:
        """Keep the newest saves; a later step than the newest was not whole, or we had used it."""
        steps = self.steps()
        kept = [step for step in steps if step <= newest_step][: self._keep]
        for step in steps:
            if step not in kept:
                shutil.rmtree(self._path(step), ignore_errors=True)

    def _wait_for(self, path: Path, problem: str) -> None:
        for _ in range(self._waits):
            if path.exists():
                return
            self._sleep(_POLL_S)
        raise CheckpointError(f"{problem} ({path} is missing); {self._what_remains()}")

    def _discard(self, temporary: Path) -> None:
        """Remove a failed save; in a gang only rank 0 does, as others' parts are in it."""
        if self._rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)

    def _what_remains(self) -> str:
        if self._newest is None:
            return "there is no earlier save"
        return f"the save of step {self._newest.step} is whole"

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}"
