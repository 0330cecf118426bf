"""What a policy is: an order over the active jobs, and the moments at which it changes."""

from collections.abc import Iterable
from typing import Protocol

from broker.schemas.operator import Settings
from scheduler_svc.core.job import Job
from scheduler_svc.core.timers import TimerKind, Timers


class Policy(Protocol):
    """Holds every active job, in order of priority. Times are milliseconds."""

    is_preemptive: bool
    """Jobs ahead may take the GPUs of running jobs behind."""
    blocks_behind_head: bool
    """Nobody passes a job that does not fit."""

    def add(self, job: Job) -> None:
        """A job enters, at the tail of its queue."""
        ...

    def remove(self, job: Job) -> None: ...

    def order(self) -> Iterable[Job]:
        """Highest priority first."""
        ...

    def settle(self) -> None:
        """A pass is over: who runs, who waits has changed."""
        ...

    def arm(self, job: Job, timers: Timers, now_ms: int) -> None:
        """Set the timers at which the job's priority changes, after its clocks changed."""
        ...

    def on_timer(self, job: Job, kind: TimerKind, now_ms: int) -> bool:
        """A timer set by `arm` is due; say if the job moved."""
        ...

    def limit_gpu_ms(self, job: Job) -> int | None:
        """Attained service at which the job is demoted; None if never."""
        ...

    def promotion_wait_ms(self, job: Job) -> int | None:
        """Waited time at which the job is promoted; None if never."""
        ...

    def reconfigure(self, settings: Settings) -> None:
        """Go on under other settings; jobs keep their order as far as they allow."""
        ...
