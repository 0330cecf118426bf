"""One background thread that writes saves while training goes on, one save at a time.

Whoever finds it busy takes a fresh snapshot at a later step instead of queueing an old one.
"""

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Runs at most one piece of work at a time, off the training thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the last piece of work is still running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the background, after what is still running; raise what that raised."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="tiresias-writer")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing runs; raise what the last piece of work raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again in the training thread
            self._error = error
