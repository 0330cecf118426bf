"""What the agent remembers across its own restarts: GPUs seen in this boot, and standing faults.

Written as a whole: temporary file, fsync, rename, fsync of the folder. A file that cannot be read
stops the agent, because starting without it would clear every flag.
"""

import os
from pathlib import Path

import msgspec

from broker.errors import TiresiasError
from broker.schemas.node import GpuInfo
from node_agent.core.health import Fault


class StateFileError(TiresiasError):
    """The state file cannot be read."""


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """``gpus`` are all that were found in boot ``boot_id``, whatever the device mask."""

    boot_id: str = ""
    gpus: tuple[GpuInfo, ...] = ()
    faults: dict[str, Fault] = {}


def load(path: Path) -> AgentState:
    """Return what was saved last; an empty state at the very first start."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=AgentState)
    except FileNotFoundError:
        return AgentState()
    except (OSError, msgspec.MsgspecError) as error:
        raise StateFileError(
            f"cannot read {path}: {error}; repair it, or remove it to clear all GPU faults"
        ) from error


def save(path: Path, state: AgentState) -> None:
    """Replace the file; after return the new state survives a power cut."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
