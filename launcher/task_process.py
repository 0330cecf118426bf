"""From a run's plan to a process that executes the job's command.

Whatever fails here is the job's failure: one line in the task's log, and a shell's exit code for
it (127: no such command, 126: cannot be run). Standard library only, for the supervisor.
"""

import errno
import os
import subprocess
from collections.abc import Mapping
from typing import Any

_NOT_FOUND, _CANNOT_RUN = 127, 126
_INHERITED = {k: v for k, v in os.environb.items() if not k.startswith(b"TIRESIAS_")}
"""The launcher's own variables are not the job's: its bus address may hold a password."""
_TOO_LONG = "; Linux takes 128 KiB in one argument or variable and about 2 MiB in all"


class StartFailure:
    """Why a task cannot be started: a line for its log, and its exit code."""

    def __init__(
        self, doing: str, error: OSError | ValueError, exit_code: int = _CANNOT_RUN
    ) -> None:
        self.line = f"tiresias: {doing}: {_reason(error)}\n".encode(errors="replace")
        self.exit_code = exit_code


def enter_workdir(plan: Mapping[str, Any], work: str) -> StartFailure | None:
    """Make the folder for checkpoints, and change to the one in which the tasks shall start."""
    doing = f"cannot create the checkpoint folder {plan['checkpoint_dir']!r}"
    workdir = plan["workdir"] or work
    try:
        os.makedirs(plan["checkpoint_dir"], mode=0o700, exist_ok=True)
        doing = f"cannot enter workdir {workdir!r}"
        os.chdir(workdir)
    except (OSError, ValueError) as error:
        return StartFailure(doing, error)
    return None


def start_task(plan: Mapping[str, Any], task: Mapping[str, Any], output: int) -> int | StartFailure:
    """Start a task in a session of its own; return its process id, for the caller to reap.

    ``output`` becomes its stdout and stderr. Nothing of ours runs between fork and exec, so the
    standard library copies no memory for the child.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 a job's command
            [_to_bytes(part) for part in plan["argv"]],
            env=_environment(plan["env"], task["env"]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        if error.filename is None:
            return StartFailure("cannot start a process", error)
        is_missing = error.errno == errno.ENOENT
        return _not_run(plan, error, _NOT_FOUND if is_missing else _CANNOT_RUN)
    except ValueError as error:
        return _not_run(plan, error, _CANNOT_RUN)
    process.returncode = 0
    return process.pid


def _not_run(plan: Mapping[str, Any], error: OSError | ValueError, exit_code: int) -> StartFailure:
    return StartFailure(f"cannot run {plan['argv'][0]!r}", error, exit_code)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):
        return str(error)
    hint = _TOO_LONG if error.errno == errno.E2BIG else ""
    return f"{os.strerror(error.errno or 0).lower()}{hint}"


def _environment(run: Mapping[str, str], task: Mapping[str, str]) -> dict[bytes, bytes]:
    given = {**run, **task}
    return _INHERITED | {_to_bytes(name): _to_bytes(value) for name, value in given.items()}


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
