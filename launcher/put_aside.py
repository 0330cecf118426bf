"""How a run is put aside, so that its GPUs go to another job and it can resume later.

The one way now is save-and-exit. Parking in place (freezer, cuda-checkpoint) will be another
implementation of the same protocol.
"""

from typing import Protocol

from broker.schemas.run import StopReason
from launcher.supervisors import Supervisors


class PutAside(Protocol):
    """A strategy for preemption."""

    def put_aside(self, run_id: str, grace_ms: int) -> None:
        """Begin to free the run's GPUs; the end shows in the run's status. Repeating is safe."""
        ...


class SaveAndExit:
    """Ask the tasks to save and exit; after ``grace_ms`` they are killed."""

    def __init__(self, supervisors: Supervisors) -> None:
        self._supervisors = supervisors

    def put_aside(self, run_id: str, grace_ms: int) -> None:
        self._supervisors.ask(run_id, StopReason.PREEMPT, grace_ms)
