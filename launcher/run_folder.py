"""Names inside a run's folder, shared by the launcher and the supervisor; standard library only.

``<state-dir>/runs/<run_id>/`` holds the status file, the control pipe, the tasks' logs and, where
the job names none, the folder its tasks start in. A living supervisor has the status file locked.
"""

import contextlib
import fcntl
import os

STATUS = "status.jsonl"
CONTROL = "control"
SCRIPT = "script.sh"
WORK = "work"
BELL = "launcher.bell"
"""In the runtime folder: a supervisor writes its run id there when something has happened."""
MARK = "TIRESIAS_RUN_DIR"
"""The variable by which a process of the run is known wherever it hides."""


def lock_status(run_dir: str) -> int | None:
    """Open the status file for appending, for us alone; None if a supervisor is alive."""
    path = os.path.join(run_dir, STATUS)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def read_status(run_dir: str) -> bytes:
    """Return the status file's bytes, none where there is no file yet."""
    try:
        file = os.open(os.path.join(run_dir, STATUS), os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.read(file, os.fstat(file).st_size)
    finally:
        os.close(file)


def write_line(pipe: str, line: bytes) -> bool:
    """Write to a named pipe if somebody reads it; a short line arrives whole or not at all."""
    try:
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(file, line)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def open_pipe(pipe: str) -> int:
    """Create a named pipe if need be and open it for reading; it never reads as ended."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(pipe, 0o600)
    return os.open(pipe, os.O_RDWR | os.O_NONBLOCK)


def read_lines(pipe: int) -> list[bytes]:
    """Return the lines that wait in a pipe opened by `open_pipe`."""
    try:
        return os.read(pipe, 65_536).splitlines()
    except BlockingIOError:
        return []
