"""One pass: who gets GPUs, who gives them up, who is promised them, and why the others wait.

Jobs are walked in the policy's order with a counter of healthy GPUs, all or nothing. Those that
fit are placed in that order: on idle GPUs, on GPUs being released, then on those of running jobs
of lower priority, as few and as low as will do. Nobody is preempted for a job that cannot be
placed. GPUs that are still another's are *claimed*: held for the job they were taken for. A pass
changes no owner; it returns what its caller shall do, and sets each job's claim and wait.
"""

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from broker.schemas.operator import Settings
from broker.schemas.views import WaitReason
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.job import Job, Placement, Wait, gpus_of
from scheduler_svc.core.placement.choose import Fits, Free, Shape, place, shape_of

MAX_REWALKS = 32
_BLOCKS_NOBODY = frozenset((WaitReason.HELD, WaitReason.NO_NODE_EVER_FITS, WaitReason.NO_NODES))
"""Not even a strict order waits for a job that its user holds, or that can never run."""


class Plan(msgspec.Struct):
    """What a pass decided."""

    starts: list[tuple[Job, Placement]]
    preempts: list[tuple[Job, int | None]]
    """(victim, the job its GPUs go to; None: it is held by its user)."""
    exempt_victims: list[Job]
    """Will be preempted when their least running time is over, if still wanted."""
    changed: list[Job]
    """Jobs that wait for another reason than before."""


def make_plan(
    order: Iterable[Job],
    cluster: Cluster,
    settings: Settings,
    now_ms: int,
    *,
    is_preemptive: bool,
    blocks_behind_head: bool,
) -> Plan:
    """Run one pass over the active jobs, highest priority first."""
    jobs = list(order)
    unplaceable: set[int] = set()
    for _ in range(MAX_REWALKS):
        attempt = _Pass(jobs, cluster, settings, now_ms, unplaceable, is_preemptive=is_preemptive)
        newly_unplaceable = attempt.walk(blocks_behind_head=blocks_behind_head)
        if newly_unplaceable is None:
            break
        unplaceable.add(newly_unplaceable.job_id)
    return attempt.commit()


class _Pass:
    """One walk and its placements, kept apart from the jobs until `commit`."""

    def __init__(
        self,
        jobs: list[Job],
        cluster: Cluster,
        settings: Settings,
        now_ms: int,
        unplaceable: set[int],
        *,
        is_preemptive: bool,
    ) -> None:
        self._jobs = jobs
        self._concerned = jobs
        """All but those that wait as before, without a GPU for anybody."""
        self._cluster = cluster
        self._settings = settings
        self._now_ms = now_ms
        self._unplaceable = unplaceable
        self._is_preemptive = is_preemptive
        self._rank = {job.job_id: rank for rank, job in enumerate(jobs)}
        self._is_selected: set[int] = set()
        self._to_place: list[Job] = []
        self._is_holding_nodes = False
        self._waits: dict[int, Wait] = {}
        self._too_big_waits: dict[tuple[int, int], Wait] = {}
        """Shared by all jobs that wait for the same GPUs: waits never change."""
        self._claims: dict[int, Placement] = {}
        self._starts: list[tuple[Job, Placement]] = []
        self._evicted: dict[int, int | None] = {}
        self._idle, self._soon = _free_gpus(cluster)
        self._fits = Fits(cluster)

    def walk(self, *, blocks_behind_head: bool) -> Job | None:
        """Select by count and place those selected; return the first that has no place, if any.

        For the highest that had no place in an earlier walk, nodes are held when its turn comes:
        those ahead of it have been placed by then.
        """
        self._evict_held()
        missed = None
        left = self._cluster.obtainable_gpus()
        holders = sum(job.is_holding for job in self._jobs)
        for index, job in enumerate(self._jobs):
            if left <= 0 and holders == 0:
                self._leave_waiting(index)
                break
            if job.is_holding:
                holders -= 1
            if job.is_holding and not job.is_held:
                left -= self._keep(job, left)
                continue
            wait = self._not_eligible(job) or self._too_big(job, left)
            if wait is None and job.job_id in self._unplaceable:
                missed = missed or self._place_selected()
                left -= self._hold_nodes(job)
                is_reserved = job.job_id in self._claims
                reason = WaitReason.RESERVED if is_reserved else WaitReason.FRAGMENTED
                wait = Wait(reason=reason, needed_gpus=job.gpus, free_gpus=left)
            if wait is None:
                left -= job.gpus
                self._to_place.append(job)
                continue
            self._waits[job.job_id] = wait
            if blocks_behind_head and wait.reason not in _BLOCKS_NOBODY:
                left = 0
        return missed or self._place_selected()

    def commit(self) -> Plan:
        """Write claims and waits to the jobs; return what the caller shall do."""
        starting = {job.job_id for job, _ in self._starts}
        plan = Plan(self._starts, [], [], [])
        for job in self._concerned:
            claim = self._claims.get(job.job_id)
            if job.claim is None and claim is not None:
                job.claimed_at_ms = self._now_ms
            job.claim = claim
            if job.job_id in self._evicted:
                for_job = self._evicted[job.job_id]
                if for_job is not None and job.exempt_until_ms > self._now_ms:
                    plan.exempt_victims.append(job)
                else:
                    plan.preempts.append((job, for_job))
            is_served = job.job_id in starting or (
                job.is_holding and job.job_id not in self._evicted
            )
            wait = None if is_served else self._waits.get(job.job_id)
            if _kind(wait) != _kind(job.wait):
                plan.changed.append(job)
            job.wait = wait
        return plan

    def _leave_waiting(self, index: int) -> None:
        """Nothing is left for the jobs from ``index`` on, and none of them runs."""
        changed = [job for job in self._jobs[index:] if not self._waits_as_before(job)]
        for job in changed:
            self._waits[job.job_id] = self._not_eligible(job) or self._nothing_left(job)
        self._concerned = self._jobs[:index] + changed

    def _waits_as_before(self, job: Job) -> bool:
        wait = job.wait
        return (
            wait is not None
            and wait.reason is WaitReason.RESOURCES
            and wait.for_job is None
            and job.claim is None
            and self._not_eligible(job) is None
        )

    def _evict_held(self) -> None:
        """Running jobs that their users hold give up their GPUs, whoever wants them."""
        for job in self._jobs:
            if job.is_held and job.is_holding:
                self._evict(job, None)

    def _keep(self, job: Job, left: int) -> int:
        """Let a running job keep its GPUs if the count allows; return how many others lose.

        GPUs that nobody else could use (cordoned, silent or faulty) cost nothing.
        """
        usable = sum(
            self._cluster.is_usable(node, gpu_id) for node, gpu_id in gpus_of(job.placement or {})
        )
        if job.job_id in self._evicted or (usable > left and self._is_preemptive):
            return 0
        self._is_selected.add(job.job_id)
        return usable

    def _nothing_left(self, job: Job) -> Wait:
        return Wait(reason=WaitReason.RESOURCES, needed_gpus=job.gpus, free_gpus=0)

    def _too_big(self, job: Job, left: int) -> Wait | None:
        """All or nothing: the GPUs left by the jobs ahead must do."""
        gpus = job.gpus
        if gpus <= left:
            return None
        wait = self._too_big_waits.get((gpus, left))
        if wait is None:
            wait = Wait(reason=WaitReason.RESOURCES, needed_gpus=gpus, free_gpus=max(left, 0))
            self._too_big_waits[gpus, left] = wait
        return wait

    def _place_selected(self) -> Job | None:
        """Place the selected jobs in order; return the first that has no place, if any."""
        missed = None
        for job in self._to_place:
            if not self._place(job):
                self._waits[job.job_id] = Wait(reason=WaitReason.FRAGMENTED, needed_gpus=job.gpus)
                missed = missed or job
        self._to_place = []
        return missed

    def _not_eligible(self, job: Job) -> Wait | None:
        """Why a job takes no part in this walk, whatever is free."""
        if job.is_held:
            return Wait(reason=WaitReason.HELD)
        if job.backoff_until_ms > self._now_ms:
            return Wait(reason=WaitReason.BACKOFF, until_ms=job.backoff_until_ms)
        if self._fits.fewest_nodes(job) is not None:
            return None
        return Wait(
            reason=self._never_reason(job),
            needed_gpus=job.gpus,
            free_gpus=self._cluster.usable_gpus(),
        )

    def _never_reason(self, job: Job) -> WaitReason:
        if not self._cluster.nodes:
            return WaitReason.NO_NODES
        slots = sum(len(n.gpus) // job.gpus_per_worker for n in self._cluster.nodes.values())
        fits_with_all = slots >= job.workers
        return WaitReason.NODES_CORDONED if fits_with_all else WaitReason.NO_NODE_EVER_FITS

    def _shape(self, job: Job) -> Shape:
        fewest = self._fits.fewest_nodes(job)
        assert fewest is not None, job
        return shape_of(job, self._settings, fewest)

    def _place(self, job: Job) -> bool:
        """Find GPUs for one selected job: a start, or a claim; False if there are none."""
        shape = self._shape(job)
        for is_strict in shape.strictness:
            placement = place(job, shape, self._idle, self._cluster, is_strict=is_strict)
            if placement is not None and job.placement is None:
                self._take(placement)
                self._starts.append((job, placement))
                return True
            if placement is not None or self._keeps_claim(job, shape, is_strict=is_strict):
                self._claim(job, placement or job.claim or {})
                return True
            below = self._running_below(job)
            unselected = [other for other in below if other.job_id not in self._is_selected]
            for victims in ([], unselected):
                if self._claim_with_victims(job, shape, victims, is_strict=is_strict):
                    return True
        return self._claim_with_victims(job, shape, below, is_strict=is_strict)

    def _keeps_claim(self, job: Job, shape: Shape, *, is_strict: bool) -> bool:
        """The GPUs promised before are still to be had without any further victim."""
        if job.claim is None or (is_strict and len(job.claim) > shape.fewest_nodes):
            return False
        claimed = gpus_of(job.claim)
        return len(claimed) == job.gpus and all(
            gpu_id in self._idle.get(node, ()) or gpu_id in self._soon.get(node, ())
            for node, gpu_id in claimed
        )

    def _claim_with_victims(
        self, job: Job, shape: Shape, candidates: list[Job], *, is_strict: bool
    ) -> bool:
        """Claim idle GPUs, GPUs being released and those of as few candidates as will do."""
        victims = self._fewest_victims(job, shape, candidates, is_strict=is_strict)
        if victims is None:
            return False
        free = self._with_victims(victims)
        placement = place(job, shape, free, self._cluster, is_strict=is_strict)
        assert placement is not None, job
        for victim in victims:
            self._evict(victim, job.job_id)
        self._claim(job, placement)
        return True

    def _running_below(self, job: Job) -> list[Job]:
        """Whom the job may preempt, lowest first."""
        if not self._is_preemptive:
            return []
        return [
            other
            for other in reversed(self._jobs[self._rank[job.job_id] + 1 :])
            if other.is_holding and other.job_id not in self._evicted
        ]

    def _fewest_victims(
        self, job: Job, shape: Shape, candidates: list[Job], *, is_strict: bool
    ) -> list[Job] | None:
        """Lowest first until the gang fits, then give back whoever is not needed."""

        def fits(victims: list[Job]) -> bool:
            free = self._with_victims(victims)
            return place(job, shape, free, self._cluster, is_strict=is_strict) is not None

        if not fits(candidates):
            return None
        counts = range(len(candidates) + 1)
        count = bisect_left(counts, True, key=lambda n: fits(candidates[:n]))
        victims = candidates[:count]
        for victim in reversed(victims[:-1]):
            fewer = [other for other in victims if other is not victim]
            if fits(fewer):
                victims = fewer
        return victims

    def _with_victims(self, victims: list[Job]) -> Free:
        """Idle GPUs first, then those being released, then the victims'."""
        free = {node: list(gpus) for node, gpus in self._idle.items()}
        for node, gpus in self._soon.items():
            free.setdefault(node, []).extend(gpus)
        for victim in victims:
            for node, gpu_id in gpus_of(victim.placement or {}):
                if self._cluster.is_usable(node, gpu_id):
                    free.setdefault(node, []).append(gpu_id)
        return free

    def _evict(self, victim: Job, for_job: int | None) -> None:
        """Count the victim's GPUs as coming free."""
        self._evicted[victim.job_id] = for_job
        self._waits[victim.job_id] = Wait(
            reason=WaitReason.RESOURCES, needed_gpus=victim.gpus, for_job=for_job
        )
        for node, gpu_id in gpus_of(victim.placement or {}):
            if self._cluster.is_usable(node, gpu_id):
                self._soon.setdefault(node, []).append(gpu_id)

    def _claim(self, job: Job, placement: Placement) -> None:
        self._take(placement)
        self._claims[job.job_id] = placement
        self._waits[job.job_id] = Wait(
            reason=WaitReason.WAITING_FOR_PREEMPTION,
            needed_gpus=job.gpus,
            for_job=self._owner_of(placement, job),
        )

    def _owner_of(self, placement: Placement, job: Job) -> int | None:
        """The first other job that must give up a GPU of the placement."""
        owners = (self._cluster.gpu(node, gpu_id).owner for node, gpu_id in gpus_of(placement))
        jobs = (int(owner.partition("-")[0]) for owner in owners if owner is not None)
        return next((job_id for job_id in jobs if job_id != job.job_id), None)

    def _take(self, placement: Placement) -> None:
        """Remove the placement's GPUs from what lower jobs may have."""
        for node, gpu_id in gpus_of(placement):
            for pool in (self._idle, self._soon):
                if gpu_id in pool.get(node, ()):
                    pool[node].remove(gpu_id)

    def _hold_nodes(self, job: Job) -> int:
        """Keep the nodes with the most idle GPUs for the job; return how many GPUs are now held.

        Only nodes that can take the gang together, and only for one job a pass.
        """
        if self._is_holding_nodes:
            return 0
        self._is_holding_nodes = True
        before = job.claim or {}
        wishes = sorted(
            self._idle, key=lambda name: (name not in before, -len(self._idle[name]), name)
        )
        claim: Placement = {}
        for node, workers in self._fits.fill(job, self._shape(job), wishes).items():
            if held := self._idle[node][: workers * job.gpus_per_worker]:
                claim[node] = [held]
        if claim:
            self._take(claim)
            self._claims[job.job_id] = claim
        return len(gpus_of(claim))


def _kind(wait: Wait | None) -> tuple[WaitReason, int | None] | None:
    return None if wait is None else (wait.reason, wait.for_job)


def _free_gpus(cluster: Cluster) -> tuple[Free, Free]:
    """Idle GPUs of usable nodes, and those whose run was told to stop."""
    idle: Free = {}
    soon: Free = {}
    for node in cluster.nodes.values():
        if node.is_usable:
            gpus = [(gpu_id, gpu) for gpu_id, gpu in node.gpus.items() if gpu.is_obtainable]
            idle[node.name] = [gpu_id for gpu_id, gpu in gpus if gpu.owner is None]
            soon[node.name] = [gpu_id for gpu_id, gpu in gpus if gpu.is_releasing]
    return idle, soon
