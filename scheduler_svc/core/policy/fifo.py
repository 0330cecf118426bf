"""First in, first out, strict: the head of the line blocks everybody behind it."""

from collections.abc import Iterable

from broker.schemas.operator import Settings
from scheduler_svc.core.job import Job
from scheduler_svc.core.timers import TimerKind, Timers


class Fifo:
    """Order of submission, no preemption, no backfill."""

    is_preemptive = False
    blocks_behind_head = True

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def add(self, job: Job) -> None:
        self._jobs[job.job_id] = job

    def remove(self, job: Job) -> None:
        del self._jobs[job.job_id]

    def order(self) -> Iterable[Job]:
        return sorted(self._jobs.values(), key=lambda job: job.job_id)

    def settle(self) -> None:
        """The order does not depend on who runs."""

    def arm(self, job: Job, timers: Timers, now_ms: int) -> None:
        """Priorities never change; timers of an earlier policy must not."""
        del now_ms
        timers.set(job.job_id, TimerKind.DEMOTE, None)
        timers.set(job.job_id, TimerKind.PROMOTE, None)

    def on_timer(self, job: Job, kind: TimerKind, now_ms: int) -> bool:
        del job, kind, now_ms
        return False

    def limit_gpu_ms(self, job: Job) -> None:
        """Nobody is demoted."""

    def promotion_wait_ms(self, job: Job) -> None:
        """Nobody is promoted."""

    def reconfigure(self, settings: Settings) -> None:
        """There is nothing to set."""
