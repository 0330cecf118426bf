"""The named pipe in a run's folder through which the launcher asks for the run's end.

It moves with its supervisor from run to run, since a file costs more to make than to move. A
request names its run: one that comes late is not for the next. Standard library only, for the
supervisor.
"""

import json
import os
from typing import NamedTuple

from launcher import run_folder


class StopRequest(NamedTuple):
    """End the run within the grace, for a `StopReason`."""

    run_id: str
    reason: str
    grace_ms: int


class ControlPipe:
    """A supervisor's end; ``file`` can be polled once it is in a run's folder."""

    def __init__(self) -> None:
        self.file = -1
        self._path = ""

    def move_to(self, run_dir: str) -> None:
        """Take it to a run's folder; it is made where there is none, or none any more."""
        path = os.path.join(run_dir, run_folder.CONTROL)
        try:
            os.rename(self._path, path)
        except FileNotFoundError:
            if self._path:
                os.close(self.file)
            self.file = run_folder.open_pipe(path)
        self._path = path

    def requests(self) -> list[StopRequest]:
        """Return those that wait; what is none is left out."""
        found = []
        for line in run_folder.read_lines(self.file):
            try:
                values = json.loads(line)
                found.append(
                    StopRequest(values["run_id"], values["reason"], int(values["grace_ms"]))
                )
            except (ValueError, KeyError, TypeError):
                continue
        return found


def ask(run_dir: str, request: StopRequest) -> None:
    """Write to the run's supervisor, if it is there."""
    line = json.dumps(request._asdict()).encode() + b"\n"
    run_folder.write_line(os.path.join(run_dir, run_folder.CONTROL), line)
