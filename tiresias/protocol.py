"""The job's side of the job socket: JSON lines to the node agent, which never answers.

Rule: reporting never blocks, delays or fails the training. The socket does not block, the buffer
is bounded, a lost agent is found again later, and what does not fit is dropped.
"""

import contextlib
import json
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_LINE_BYTES = 1024 * 1024
MAX_WAITING_LINES = 64
RECONNECT_AFTER_S = 1.0
PROGRESS_EVERY_S = 0.5
FLUSH_S = 1.0


class JobReporter:
    """Sends one task's reports. Safe to call from several threads.

    Without a socket path (offline) every call does nothing.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        run_id: str = "",
        task: str = "",
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._hello = _line({"type": "hello", "run_id": run_id, "task": task, "rank": rank})
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING_LINES)
        self._line = b""
        self._sent_bytes = 0
        self._socket: socket.socket | None = None
        self._retry_at_s = -math.inf
        self._progress_at_s = -math.inf
        self._held_progress: Mapping[str, Any] | None = None

    def progress(self, step: int, total_steps: int | None, metrics: Mapping[str, float]) -> None:
        """Tell the step just done; at most two reports a second leave, and the last one."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        report = {"type": "progress", "step": step, "metrics": finite}
        if total_steps is not None:
            report["total_steps"] = total_steps
        now_s = self._clock()
        if now_s - self._progress_at_s < PROGRESS_EVERY_S:
            self._held_progress = report
            return
        self._progress_at_s, self._held_progress = now_s, None
        self._send(report)

    def tensors(self, tensor_bytes: Sequence[int]) -> None:
        """Tell the size of each trainable tensor, in bytes."""
        self._send({"type": "tensors", "tensor_bytes": list(tensor_bytes)})

    def saved(self, step: int, path: Path, *, save_ms: int, size_bytes: int, asked: bool) -> None:
        """Tell that a save is complete; for one that was asked for, wait until this has left."""
        self._send(
            {
                "type": "saved",
                "step": step,
                "path": str(path),
                "save_ms": save_ms,
                "size_bytes": size_bytes,
                "asked": asked,
            }
        )
        if asked:
            self.flush(FLUSH_S)

    def resumed(self, step: int, *, restore_ms: int, first_step_ms: int) -> None:
        """Tell that the first step after a start is done; ``step`` is where it started from."""
        self._send(
            {
                "type": "resumed",
                "step": step,
                "restore_ms": restore_ms,
                "first_step_ms": first_step_ms,
            }
        )

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything has left, at most ``timeout_s``; return whether it has."""
        held, self._held_progress = self._held_progress, None
        if held is not None:
            self._send(held)
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            while not self._push():
                remaining_s = deadline_s - time.monotonic()
                if self._socket is None or remaining_s <= 0:
                    return False
                select.select([], [self._socket], [], remaining_s)
        return True

    def close(self) -> None:
        """Send what is waiting, for a short while, and hang up."""
        self.flush(FLUSH_S)
        with self._lock:
            self._hang_up()

    def _send(self, report: Mapping[str, Any]) -> None:
        line = _line(report)
        if self._path is None or len(line) > MAX_LINE_BYTES:
            return
        with self._lock:
            self._waiting.append(line)
            self._push()

    def _push(self) -> bool:
        """Write what the socket takes now; return whether nothing is left."""
        while self._line or self._waiting:
            connection = self._connection()
            if connection is None:
                return False
            if not self._line:
                self._line = self._waiting.popleft()
            try:
                self._sent_bytes += connection.send(self._line[self._sent_bytes :])
            except BlockingIOError:
                return False
            except OSError:
                self._hang_up()
                continue
            if self._sent_bytes == len(self._line):
                self._line, self._sent_bytes = b"", 0
        return True

    def _connection(self) -> socket.socket | None:
        """Return the live connection, or try to make one at most once a second."""
        now_s = self._clock()
        if self._socket is not None or now_s < self._retry_at_s:
            return self._socket
        self._retry_at_s = now_s + RECONNECT_AFTER_S
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(str(self._path))
        except OSError:
            connection.close()
            return None
        self._socket = connection
        self._line = self._hello
        return connection

    def _hang_up(self) -> None:
        """Drop the connection. A half sent line is sent again, whole, after the next hello."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None
        if self._line and self._line != self._hello:
            self._waiting.appendleft(self._line)
        self._line, self._sent_bytes = b"", 0


def _line(report: Mapping[str, Any]) -> bytes:
    return json.dumps(report, separators=(",", ":")).encode() + b"\n"
