"""What a job knows about itself: the TIRESIAS_* variables, read once into a frozen value.

Without TIRESIAS_RUN_ID the script runs on its own (offline): every call works the same, nothing
is reported, and saves go to ``./checkpoints`` unless the script names another folder.
"""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tiresias.errors import EnvironmentVariableError

OFFLINE_CHECKPOINT_DIR = Path("checkpoints")
_NON_NEGATIVE = "a whole number, 0 or more"
_POSITIVE = "a whole number, 1 or more"


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """One task's place in its run. ``world_size`` counts workers, not parameter servers."""

    is_offline: bool = True
    run_id: str = ""
    attempt: int = 1
    role: str = "worker"
    index: int = 0
    rank: int = 0
    world_size: int = 1
    checkpoint_dir: Path = OFFLINE_CHECKPOINT_DIR
    checkpoint_keep: int = 2
    checkpoint_every_steps: int | None = None
    grace_ms: int = 30_000
    socket: Path | None = None
    write_token: str = ""
    """Names this attempt's unfinished files, so that no other attempt writes the same ones."""

    @property
    def task(self) -> str:
        """The task's name in its run, for example ``worker-0``."""
        return f"{self.role}-{self.index}"

    @property
    def saving_ranks(self) -> int:
        """How many tasks write a part of each save: every worker, or the chief alone."""
        return 1 if self.role == "chief" else self.world_size

    @property
    def saving_rank(self) -> int:
        """Which of those parts is this task's."""
        return 0 if self.saving_ranks == 1 else self.rank


def read_environment(
    variables: Mapping[str, str] | None = None, *, checkpoint_dir: str | Path | None = None
) -> JobEnvironment:
    """Read the variables the launcher sets, or describe an offline run when there are none.

    ``checkpoint_dir`` is used offline only: under the launcher the scheduler's folder wins.
    Raises `EnvironmentVariableError` for a value that makes no sense.
    """
    variables = os.environ if variables is None else variables
    if variables.get("TIRESIAS_RUN_ID"):
        return _from_launcher(variables)
    environment = _from_tf_config(variables)
    every_steps = _optional_number(variables, "TIRESIAS_CHECKPOINT_EVERY_STEPS", minimum=1)
    return replace(
        environment,
        checkpoint_dir=Path(checkpoint_dir or OFFLINE_CHECKPOINT_DIR),
        checkpoint_every_steps=every_steps,
    )


def _from_launcher(variables: Mapping[str, str]) -> JobEnvironment:
    run_id = variables["TIRESIAS_RUN_ID"]
    socket = variables.get("TIRESIAS_SOCKET")
    return JobEnvironment(
        is_offline=False,
        run_id=run_id,
        attempt=_number(variables, "TIRESIAS_ATTEMPT", default=1, minimum=1),
        role=variables.get("TIRESIAS_ROLE", "worker"),
        index=_number(variables, "TIRESIAS_INDEX", default=0),
        rank=_number(variables, "TIRESIAS_RANK", default=0),
        world_size=_number(variables, "TIRESIAS_WORLD_SIZE", default=1, minimum=1),
        checkpoint_dir=Path(variables.get("TIRESIAS_CHECKPOINT_DIR") or OFFLINE_CHECKPOINT_DIR),
        checkpoint_keep=_number(variables, "TIRESIAS_CHECKPOINT_KEEP", default=2, minimum=1),
        checkpoint_every_steps=_optional_number(
            variables, "TIRESIAS_CHECKPOINT_EVERY_STEPS", minimum=1
        ),
        grace_ms=_number(variables, "TIRESIAS_GRACE_MS", default=30_000),
        socket=Path(socket) if socket else None,
        write_token=run_id,
    )


def _from_tf_config(variables: Mapping[str, str]) -> JobEnvironment:
    """An offline gang knows its shape from TF_CONFIG; anything else is a single process."""
    text = variables.get("TF_CONFIG")
    if not text:
        return JobEnvironment(write_token=f"local-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        role, index = str(task["type"]), int(task["index"])
        world_size = len(cluster.get("worker", ())) or 1
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        expected = 'JSON with "cluster" and "task" (type, index)'
        raise EnvironmentVariableError("TF_CONFIG", text, expected) from error
    token = f"local-{zlib.crc32(json.dumps(cluster, sort_keys=True).encode()):08x}"
    return JobEnvironment(
        role=role, index=index, rank=index, world_size=world_size, write_token=token
    )


def _number(variables: Mapping[str, str], name: str, *, default: int, minimum: int = 0) -> int:
    value = _optional_number(variables, name, minimum=minimum)
    return default if value is None else value


def _optional_number(variables: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    text = variables.get(name)
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < minimum:
        raise EnvironmentVariableError(name, text, _POSITIVE if minimum else _NON_NEGATIVE)
    return int(text)
