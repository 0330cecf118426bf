"""What scheduling knows of a job: its gang, its service, its waiting, the GPUs it holds.

Paper section 3.2: W GPUs, t executed time, attained service W * t. Times are integer
milliseconds, service integer GPU-milliseconds.
"""

import msgspec

from broker.schemas.views import WaitReason

Placement = dict[str, list[list[str]]]
"""Node -> one list of GPU ids for each worker placed there."""


def gpus_of(placement: Placement) -> list[tuple[str, str]]:
    """Return every (node, GPU id) of a placement, in order."""
    return [
        (node, gpu_id) for node, workers in placement.items() for gpus in workers for gpu_id in gpus
    ]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job does not run, with the numbers that decided."""

    reason: WaitReason
    needed_gpus: int = 0
    free_gpus: int = 0
    for_job: int | None = None
    until_ms: int | None = None


class Job(msgspec.Struct, kw_only=True):
    """A job as the passes see it. ``job_id`` is its place in order of submission."""

    job_id: int
    workers: int
    gpus_per_worker: int
    consolidate: str | None = None
    skew: float | None = None
    queue_index: int = 0
    executed_ms: int = 0
    """Executed time since the last promotion, up to ``counting_since_ms``."""
    service_gpu_ms: int = 0
    """All service ever attained, up to ``counting_since_ms``."""
    counting_since_ms: int | None = None
    """Since when its gang is up; None while it is not."""
    waited_ms: int = 0
    """Waited time since the last promotion, up to ``waiting_since_ms``; only what came after its
    first run since then counts (a job that has not run cannot be promoted)."""
    queued_ms: int = 0
    """All waiting in its life, up to ``waiting_since_ms``."""
    waiting_since_ms: int | None = None
    first_placed_at_ms: int | None = None
    placement: Placement | None = None
    is_releasing: bool = False
    """Its run was told to stop; the GPUs are its own until the run is over."""
    is_withheld: bool = False
    """What becomes of it after its run is not known yet: it takes no part in passes."""
    claim: Placement | None = None
    """GPUs promised to it, of which some are still another's."""
    claimed_at_ms: int = 0
    """Since when it has been promised GPUs, if it is."""
    preemption_cost_ms: int = 0
    """What putting it aside and bringing it back cost the last time; 0: not known."""
    exempt_until_ms: int = 0
    """May not be preempted before."""
    backoff_until_ms: int = 0
    is_held: bool = False
    wait: Wait | None = None

    @property
    def gpus(self) -> int:
        """W: GPUs of the whole gang."""
        return self.workers * self.gpus_per_worker

    @property
    def is_holding(self) -> bool:
        """It owns GPUs and keeps them."""
        return self.placement is not None and not self.is_releasing

    @property
    def is_scheduled(self) -> bool:
        """It holds GPUs, or is promised some."""
        return self.is_holding or self.claim is not None

    def executed_at(self, now_ms: int) -> int:
        """t: executed milliseconds since the last promotion."""
        if self.counting_since_ms is None:
            return self.executed_ms
        return self.executed_ms + now_ms - self.counting_since_ms

    def service_at(self, now_ms: int) -> int:
        """GPU-milliseconds attained in all its life."""
        if self.counting_since_ms is None:
            return self.service_gpu_ms
        return self.service_gpu_ms + self.gpus * (now_ms - self.counting_since_ms)

    def waited_at(self, now_ms: int) -> int:
        """δ: waited milliseconds since the last promotion."""
        if self.waiting_since_ms is None:
            return self.waited_ms
        return self.waited_ms + now_ms - self.waiting_since_ms

    def queued_at(self, now_ms: int) -> int:
        """Milliseconds waited in all its life."""
        if self.waiting_since_ms is None:
            return self.queued_ms
        return self.queued_ms + now_ms - self.waiting_since_ms

    def start_waiting(self, now_ms: int) -> None:
        """Its gang is not up any more (or not yet): service stops, waiting begins."""
        self.executed_ms = self.executed_at(now_ms)
        self.service_gpu_ms = self.service_at(now_ms)
        self.counting_since_ms = None
        if self.waiting_since_ms is None:
            self.waiting_since_ms = now_ms

    def start_counting(self, now_ms: int) -> None:
        """Its gang is up: waiting stops, service is counted."""
        self._stop_waiting(now_ms)
        if self.executed_ms == 0:
            self.waited_ms = 0
        if self.counting_since_ms is None:
            self.counting_since_ms = now_ms

    def stop_clocks(self, now_ms: int) -> None:
        """The job is over: neither service nor waiting grows any more."""
        self.start_waiting(now_ms)
        self._stop_waiting(now_ms)

    def _stop_waiting(self, now_ms: int) -> None:
        self.waited_ms = self.waited_at(now_ms)
        self.queued_ms = self.queued_at(now_ms)
        self.waiting_since_ms = None

    def reset_service(self, now_ms: int) -> None:
        """Promotion: t and δ start again at zero."""
        self.queued_ms = self.queued_at(now_ms)
        self.executed_ms = 0
        self.waited_ms = 0
        if self.waiting_since_ms is not None:
            self.waiting_since_ms = now_ms
