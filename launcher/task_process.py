"""The last steps of a new task process before it becomes the job's command.

Whatever fails here is the job's failure: one line in the task's log, and a shell's exit code for
it (127: no such command, 126: cannot be run).
"""

import ctypes
import errno
import os
import signal
from collections.abc import Mapping
from typing import Any, NoReturn

_NOT_FOUND, _CANNOT_RUN = 127, 126
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_TOO_LONG = "; Linux takes 128 KiB in one argument or variable and about 2 MiB in all"


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the new parent of every orphaned descendant."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become_task(
    plan: Mapping[str, Any], task: Mapping[str, Any], *, output: int, supervisor: int, work: str
) -> NoReturn:
    """Turn this fresh child into the task; ``output`` becomes its stdout and stderr."""
    code = _CANNOT_RUN
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != supervisor:
            os._exit(code)
        _reset_signals()
        _connect_streams(output)
        code = _execute(plan, task, plan["workdir"] or work)
    finally:
        os._exit(code)


def _reset_signals() -> None:
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)


def _connect_streams(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _execute(plan: Mapping[str, Any], task: Mapping[str, Any], workdir: str) -> int:
    """Execute the command; return the exit code that tells why it could not be."""
    doing = f"cannot create the checkpoint folder {plan['checkpoint_dir']!r}"
    is_missing = False
    try:
        os.makedirs(plan["checkpoint_dir"], mode=0o700, exist_ok=True)
        doing = f"cannot enter workdir {workdir!r}"
        os.chdir(workdir)
        argv = [_to_bytes(part) for part in plan["argv"]]
        doing = f"cannot run {plan['argv'][0]!r}"
        os.execvpe(argv[0], argv, _environment(plan["env"], task["env"]))  # noqa: S606 a job's
    except OSError as error:
        hint = _TOO_LONG if error.errno == errno.E2BIG else ""
        reason = f"{os.strerror(error.errno or 0).lower()}{hint}"
        is_missing = error.errno == errno.ENOENT and doing.startswith("cannot run")
    except ValueError as error:
        reason = str(error)
    os.write(2, f"tiresias: {doing}: {reason}\n".encode(errors="replace"))
    return _NOT_FOUND if is_missing else _CANNOT_RUN


def _environment(run: Mapping[str, str], task: Mapping[str, str]) -> dict[bytes, bytes]:
    """The launcher's own variables are not the job's: its bus address may hold a password."""
    base = {name: value for name, value in os.environb.items() if not name.startswith(b"TIRESIAS_")}
    given = {**run, **task}
    return base | {_to_bytes(name): _to_bytes(value) for name, value in given.items()}


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
