"""The request to stop: SIGTERM sets a flag, and the training looks at it between two steps.

Python runs a signal handler only between two bytecodes of the main thread, so a request that
arrives during a long native call (tracing, the first step) is seen when that call returns.
"""

import atexit
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

EXIT_STOPPED = 75
"""Exit code of a job that saved and stopped because it was asked to (EX_TEMPFAIL)."""


class StopFlag:
    """Whether this process was asked to stop. Once set it stays set."""

    def __init__(self) -> None:
        self._requests = 0

    def listen(self) -> None:
        """Turn SIGTERM into the flag. Only the main thread may do so; elsewhere it is a no-op."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)

    def set(self) -> None:
        """Ask this process to stop."""
        self._requests += 1

    def is_set(self) -> bool:
        """Return whether this process was asked to stop."""
        return self._requests > 0

    def is_repeated(self) -> bool:
        """Return whether it was asked more than once."""
        return self._requests > 1

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.set()


def exit_stopped() -> NoReturn:
    """Leave the program by `SystemExit`, with the code that means saved and stopped.

    A request that comes late, while the interpreter ends, must not change that code.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(EXIT_STOPPED)


def exit_stopped_quickly() -> NoReturn:
    """Like `exit_stopped`, and spare the interpreter's teardown once all exit handlers ran.

    With TensorFlow loaded the teardown takes more than a second, in which the GPUs would wait.
    """
    atexit.register(_end_without_teardown)
    exit_stopped()


def _end_without_teardown() -> None:
    """Run first of all exit handlers: run the others, then end."""
    atexit.unregister(_end_without_teardown)
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way to run them early
    leave_stopped_at_once()


def leave_stopped_at_once() -> NoReturn:
    """End the process with that code without unwinding, where there is nothing to unwind."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_STOPPED)


def die_unsaved(reason: str) -> None:
    """End this process as SIGTERM would have: stopped when asked, but without a save.

    The scheduler then knows that the job must go on from an earlier save, and that it did not
    fail.
    """
    sys.stdout.flush()
    sys.stderr.write(f"tiresias: stopping without a new save: {reason}\n")
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
