"""Queues, passes and clocks under the life of a run: who should hold which GPUs, and when next.

The scheduler drives it with what launchers report; the simulator drives it directly. Call
`decide` after the changes of one instant; it is the only place where GPUs are promised.
"""

from broker.schemas.operator import Settings
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.job import Job, Placement
from scheduler_svc.core.plan import Plan, make_plan
from scheduler_svc.core.policy.table import make_policy
from scheduler_svc.core.timers import TimerKind, Timers


class Engine:
    """Active jobs, their order and their timers over one cluster."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self.settings = settings
        self.cluster = cluster
        self.timers = Timers()
        self._jobs: dict[int, Job] = {}
        self._policy = make_policy(settings)

    def submit(self, job: Job, now_ms: int) -> None:
        """A job enters the first queue and waits."""
        self._jobs[job.job_id] = job
        self._policy.add(job)
        job.start_waiting(now_ms)

    def restore(self, job: Job) -> None:
        """Take a job back from a snapshot; call in the order that the snapshot gives."""
        self._jobs[job.job_id] = job
        self._policy.add(job)

    def withdraw(self, job: Job, now_ms: int) -> None:
        """A job leaves for good; GPUs it still owns are released by their run's end."""
        del self._jobs[job.job_id]
        self._policy.remove(job)
        self.timers.clear(job.job_id)
        job.stop_clocks(now_ms)
        job.claim = job.wait = None

    def is_active(self, job: Job) -> bool:
        return job.job_id in self._jobs

    def acquire(self, job: Job, placement: Placement, run_id: str, now_ms: int) -> None:
        """The job's new run owns these GPUs from now on."""
        self.cluster.acquire(placement, run_id)
        job.placement, job.claim, job.wait = placement, None, None
        job.exempt_until_ms = now_ms + self._exempt_ms(job)
        if job.first_placed_at_ms is None:
            job.first_placed_at_ms = now_ms
        self._rearm(job, now_ms)

    def begin_service(self, job: Job, now_ms: int) -> None:
        """The gang is up: service counts."""
        job.start_counting(now_ms)
        job.exempt_until_ms = now_ms + self._exempt_ms(job)
        self._rearm(job, now_ms)

    def note_preemption_cost(self, job: Job, cost_ms: int) -> None:
        """A costly preemption earns the running job a longer time without another one."""
        job.preemption_cost_ms = cost_ms
        if job.counting_since_ms is not None:
            job.exempt_until_ms = job.counting_since_ms + self._exempt_ms(job)

    def begin_release(self, job: Job) -> None:
        """The job's run was told to stop; it owns its GPUs until `release`."""
        job.is_releasing = True
        self.cluster.mark_releasing(job.placement or {})

    def withhold(self, job: Job) -> None:
        """What becomes of the job after its run is not known: until then it is promised nothing."""
        job.is_withheld = True
        job.claim = job.wait = None

    def release(self, job: Job, run_id: str, now_ms: int) -> None:
        """The job's run is over everywhere: its GPUs are free, the job waits."""
        self.cluster.release(run_id, job.placement or {})
        job.placement, job.is_releasing, job.is_withheld = None, False, False
        if self.is_active(job):
            job.start_waiting(now_ms)
            self._stop_waiting_if_held(job, now_ms)
            self._rearm(job, now_ms)

    def set_held(self, job: Job, now_ms: int, *, is_held: bool) -> None:
        """The user holds the job back, or lets it go; what it is held is not waiting."""
        job.is_held = is_held
        if job.counting_since_ms is None:
            job.start_waiting(now_ms)
        self._stop_waiting_if_held(job, now_ms)
        self._rearm(job, now_ms)

    def back_off(self, job: Job, until_ms: int) -> None:
        """Leave the job out of passes for a while."""
        job.backoff_until_ms = until_ms
        self.timers.set(job.job_id, TimerKind.BACKOFF, until_ms)

    def reconfigure(self, settings: Settings, now_ms: int) -> None:
        """Decide by other settings from now on."""
        is_same_policy = settings.policy == self.settings.policy
        self.settings = settings
        if is_same_policy:
            self._policy.reconfigure(settings)
        else:
            jobs = sorted(self._jobs.values(), key=lambda job: job.job_id)
            self._policy = make_policy(settings)
            for job in jobs:
                self._policy.add(job)
        for job in self._jobs.values():
            self._rearm(job, now_ms)

    def on_timer(self, job: Job, kind: TimerKind, now_ms: int) -> bool:
        """Demote or promote the job if that is what is due; say if it moved."""
        if kind not in (TimerKind.DEMOTE, TimerKind.PROMOTE):
            return False
        moved = self._policy.on_timer(job, kind, now_ms)
        self._rearm(job, now_ms)
        return moved

    def decide(self, now_ms: int) -> Plan:
        """Run a pass; the caller then acquires, releases and stops as the plan says."""
        plan = make_plan(
            (job for job in self._policy.order() if not job.is_withheld),
            self.cluster,
            self.settings,
            now_ms,
            is_preemptive=self._policy.is_preemptive,
            blocks_behind_head=self._policy.blocks_behind_head,
        )
        for job in plan.changed:
            self._rearm(job, now_ms)
        for victim in plan.exempt_victims:
            self.timers.set(victim.job_id, TimerKind.EXEMPT, victim.exempt_until_ms)
        return plan

    def settle(self) -> None:
        """The plan has been carried out: let the policy see who holds GPUs now."""
        self._policy.settle()

    def order(self) -> list[Job]:
        """Active jobs, highest priority first."""
        return list(self._policy.order())

    def next_limit_gpu_ms(self, job: Job) -> int | None:
        """Service at which the job is demoted; None if never."""
        return self._policy.limit_gpu_ms(job)

    def promotion_wait_ms(self, job: Job) -> int | None:
        """Waited time at which the job is promoted; None if never."""
        return self._policy.promotion_wait_ms(job)

    def _stop_waiting_if_held(self, job: Job, now_ms: int) -> None:
        if job.is_held and job.counting_since_ms is None:
            job.stop_clocks(now_ms)

    def _exempt_ms(self, job: Job) -> int:
        """Least running time before a preemption, so that preemptions never eat the cluster."""
        cost_ms = self.settings.preempt_exempt_costs * job.preemption_cost_ms
        return max(self.settings.preempt_exempt_ms, cost_ms)

    def _rearm(self, job: Job, now_ms: int) -> None:
        self._policy.arm(job, self.timers, now_ms)
