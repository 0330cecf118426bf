"""Tiresias-L: discretised two-dimensional least attained service (paper section 3.2).

K queues with ascending limits of attained service W * t. A job enters the first queue, sinks to
the tail of the next when its service reaches the limit, and with the starvation knob rises to the
first again when it has waited ``promote_knob`` times as long as it ran.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from broker.schemas.operator import Settings
from scheduler_svc.core.job import Job
from scheduler_svc.core.timers import TimerKind, Timers


class LeastAttainedService:
    """Queues in order; inside a queue by `Settings.queue_order`."""

    is_preemptive = True
    blocks_behind_head = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queues: list[dict[int, Job]] = [{} for _ in range(self._last_queue + 1)]

    @property
    def _last_queue(self) -> int:
        return len(self._settings.queue_limits_gpu_ms)

    def add(self, job: Job) -> None:
        job.queue_index = min(job.queue_index, self._last_queue)
        self._queues[job.queue_index][job.job_id] = job

    def remove(self, job: Job) -> None:
        del self._queues[job.queue_index][job.job_id]

    def order(self) -> Iterable[Job]:
        if self._settings.queue_order == "running_first":
            return chain.from_iterable(queue.values() for queue in self._queues)
        return chain.from_iterable(sorted(q.values(), key=_by_start_time) for q in self._queues)

    def settle(self) -> None:
        """`running_first`: waiting jobs move behind those that run, each group in its order."""
        if self._settings.queue_order != "running_first":
            return
        for index, queue in enumerate(self._queues):
            if _has_waiting_before_running(queue.values()):
                jobs = sorted(queue.values(), key=lambda job: not job.is_scheduled)
                self._queues[index] = {job.job_id: job for job in jobs}

    def arm(self, job: Job, timers: Timers, now_ms: int) -> None:
        timers.set(job.job_id, TimerKind.DEMOTE, self._demotion_ms(job, now_ms))
        timers.set(job.job_id, TimerKind.PROMOTE, self._promotion_ms(job, now_ms))

    def on_timer(self, job: Job, kind: TimerKind, now_ms: int) -> bool:
        if kind is TimerKind.PROMOTE:
            job.reset_service(now_ms)
            self._move(job, 0)
        else:
            self._move(job, job.queue_index + 1)
        return True

    def reconfigure(self, settings: Settings) -> None:
        jobs = list(self.order())
        self._settings = settings
        self._queues = [{} for _ in range(self._last_queue + 1)]
        for job in jobs:
            self.add(job)

    def _move(self, job: Job, queue_index: int) -> None:
        self.remove(job)
        job.queue_index = queue_index
        self.add(job)

    def _demotion_ms(self, job: Job, now_ms: int) -> int | None:
        """When W * t reaches the limit of its queue: exact, in whole milliseconds."""
        limit_gpu_ms = self.limit_gpu_ms(job)
        if limit_gpu_ms is None:
            return None
        left_ms = -(-limit_gpu_ms // job.gpus) - job.executed_at(now_ms)
        if left_ms > 0 and job.counting_since_ms is None:
            return None
        return now_ms + max(0, left_ms)

    def _promotion_ms(self, job: Job, now_ms: int) -> int | None:
        """When a waiting job that has run before has waited long enough; None if never."""
        wait_ms = self.promotion_wait_ms(job)
        if wait_ms is None or job.placement is not None or job.claim is not None or job.is_held:
            return None
        return now_ms + max(0, wait_ms - job.waited_at(now_ms))

    def limit_gpu_ms(self, job: Job) -> int | None:
        if job.queue_index >= self._last_queue:
            return None
        return self._settings.queue_limits_gpu_ms[job.queue_index]

    def promotion_wait_ms(self, job: Job) -> int | None:
        """The δ at which the job is promoted: STARVELIMIT = PROMOTEKNOB * t (section 3.2)."""
        knob = self._settings.promote_knob
        if knob is None or job.queue_index == 0 or job.executed_ms == 0:
            return None
        return max(_ceil(knob * job.executed_ms), self._settings.promote_floor_ms)


def _by_start_time(job: Job) -> tuple[bool, int, int]:
    """First start since entering the system; never-started jobs last, by submission.

    A promise of GPUs counts as a start while it lasts: who starts later on other GPUs stays behind.
    """
    started_at_ms = job.first_placed_at_ms
    if started_at_ms is None and job.claim is not None:
        started_at_ms = job.claimed_at_ms
    return (started_at_ms is None, started_at_ms or 0, job.job_id)


def _has_waiting_before_running(jobs: Iterable[Job]) -> bool:
    iterator: Iterator[Job] = iter(jobs)
    return any(not job.is_scheduled for job in iterator) and any(
        job.is_scheduled for job in iterator
    )


def _ceil(value: float) -> int:
    return -int(-value // 1)
