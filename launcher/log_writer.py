"""Writing a task's output to a row of segment files; standard library only, for the supervisor."""

import os

from launcher.core.log_index import segment_name


class LogWriter:
    """Appends bytes as printed; a task that prints nothing has no file.

    A full disk loses output, never the task that prints it.
    """

    def __init__(self, folder: str, task: str, *, segment_bytes: int, segments: int) -> None:
        self._folder = folder
        self._task = task
        self._segment_bytes = segment_bytes
        self._kept = segments
        self._closed: list[str] = []
        self._start = 0
        self._size = 0
        self._file = -1

    def write(self, data: bytes) -> None:
        """Append; begins a new segment where the present one is full."""
        while data:
            try:
                if self._file < 0:
                    self._file = self._open(self._start)
                if self._size >= self._segment_bytes:
                    self._rotate()
                written = os.write(self._file, data[: self._segment_bytes - self._size])
            except OSError:
                return
            self._size += written
            data = data[written:]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def _open(self, start: int) -> int:
        path = os.path.join(self._folder, segment_name(self._task, start))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _rotate(self) -> None:
        following = self._open(self._start + self._size)
        os.close(self._file)
        self._closed.append(segment_name(self._task, self._start))
        self._file = following
        self._start += self._size
        self._size = 0
        while len(self._closed) >= self._kept:
            os.unlink(os.path.join(self._folder, self._closed.pop(0)))
