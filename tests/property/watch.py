"""Rules of a pass, checked on every pass of a core: what was planned against what was so before."""

import msgspec

from broker.schemas.views import WaitReason
from scheduler_svc.core.job import Job, gpus_of
from scheduler_svc.core.placement.choose import Fits, is_consolidated
from scheduler_svc.core.plan import Plan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.timers import TimerKind

_CLAIMING = (WaitReason.WAITING_FOR_PREEMPTION, WaitReason.RESERVED)


def watch(core: Scheduler) -> None:
    """From now on every pass of the core is checked."""
    engine = core._world.engine
    decide = engine.decide

    def checked(now_ms: int) -> Plan:
        order = engine.order()
        fits = Fits(engine.cluster)
        plan = decide(now_ms)
        _check_preemptions(order, plan)
        _check_starts(engine.cluster, engine.settings, fits, plan)
        _check_waits(order, plan)
        return plan

    engine.decide = checked


def _check_preemptions(order: list[Job], plan: Plan) -> None:
    rank = {job.job_id: place for place, job in enumerate(order)}
    by_id = {job.job_id: job for job in order}
    for victim, for_job in plan.preempts:
        if for_job is None:
            assert victim.is_held, victim
            continue
        winner = by_id[for_job]
        assert rank[for_job] < rank[victim.job_id], "never preempt equal or higher priority"
        assert winner.claim is not None
        assert set(gpus_of(winner.claim)) & set(gpus_of(victim.placement)), (
            "nobody stops unless the newcomer gets some of its GPUs"
        )
    assert len({victim.job_id for victim, _ in plan.preempts}) == len(plan.preempts)


def _check_starts(cluster, settings, fits: Fits, plan: Plan) -> None:
    taken = set()
    for job, placement in plan.starts:
        gpus = gpus_of(placement)
        assert len(gpus) == len(set(gpus)) == job.gpus
        assert all(len(gpus) == job.gpus_per_worker for w in placement.values() for gpus in w)
        assert job.placement is None
        assert not job.is_held
        assert not taken & set(gpus)
        taken |= set(gpus)
        for node, gpu_id in gpus:
            assert cluster.is_usable(node, gpu_id)
            assert cluster.gpu(node, gpu_id).owner is None
        is_required = (job.consolidate or settings.consolidate) == "require"
        if is_consolidated(job, settings) and is_required:
            assert len(placement) == fits.fewest_nodes(job)


def _check_waits(order: list[Job], plan: Plan) -> None:
    starting = {job.job_id for job, _ in plan.starts}
    for job in order:
        if job.is_withheld or job.job_id in starting:
            assert job.claim is None
        elif not job.is_holding:
            assert job.wait is not None, f"job {job.job_id} waits without a reason"
            assert (job.claim is not None) == (job.wait.reason in _CLAIMING)
            assert not (job.is_held and job.claim)


def state_of(core: Scheduler) -> object:
    """Everything that a core decides by.

    The numbers in its reasons follow the order, and a timer for the end of an exemption that was
    prolonged meanwhile moves at the next pass.
    """
    state = msgspec.msgpack.decode(core.snapshot())
    state["timers"] = [timer for timer in state["timers"] if timer[1] != TimerKind.EXEMPT]
    for job in state["jobs"]:
        del job["wait"]
    return state
