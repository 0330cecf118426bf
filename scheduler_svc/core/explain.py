"""Why a job is where it is: one sentence, and the numbers behind it."""

from typing import assert_never

import msgspec

from broker.schemas.views import Explanation, JobState, WaitReason
from scheduler_svc.core.job import Job, Wait
from scheduler_svc.core.record import JobRecord
from scheduler_svc.core.world import World


def wait_message(job: Job, left: int | None = None) -> str:
    """Say with numbers why the job waits; empty if it does not.

    ``left`` GPUs are left by the jobs ahead now; the last pass saw who started in it behind others.
    """
    wait = job.wait
    if wait is None:
        return ""
    if left is not None and wait.reason is WaitReason.RESOURCES:
        wait = msgspec.structs.replace(wait, free_gpus=min(left, wait.free_gpus))
    match wait.reason:
        case WaitReason.RESOURCES | WaitReason.WAITING_FOR_PREEMPTION:
            return _gpus_message(job, wait)
        case WaitReason.FRAGMENTED | WaitReason.RESERVED:
            return _placement_message(job, wait)
        case WaitReason.NO_NODE_EVER_FITS:
            return (
                f"never fits: {_gang(job)}; the cluster has {_count(wait.free_gpus, 'usable GPU')}"
            )
        case WaitReason.NODES_CORDONED:
            return (
                f"needs {_count(job.gpus, 'GPU')}, only {wait.free_gpus} are on nodes in use; "
                "the others are cordoned, silent or unhealthy"
            )
        case WaitReason.HELD:
            return "held by its user; let it go with 'tiresias release'"
        case WaitReason.BACKOFF:
            return "is tried again after a pause"
        case WaitReason.NO_NODES:
            return "no node has joined the cluster"
        case unknown:
            assert_never(unknown)


def _gpus_message(job: Job, wait: Wait) -> str:
    if wait.reason is WaitReason.RESOURCES:
        if wait.for_job is not None:
            return f"gives its {_count(job.gpus, 'GPU')} to job {wait.for_job}"
        needed = _count(wait.needed_gpus, "GPU")
        return f"needs {needed}; {wait.free_gpus} left by the jobs ahead of it"
    if wait.for_job is None:
        return f"waits for {_count(job.gpus, 'GPU')} being released"
    return f"waits for the preemption of job {wait.for_job}, whose GPUs are held for it"


def _placement_message(job: Job, wait: Wait) -> str:
    if wait.reason is WaitReason.FRAGMENTED:
        left = _count(wait.free_gpus, "GPU")
        return f"{left} left, but no set of nodes takes {_gang(job)} now"
    nodes = ", ".join(job.claim or ()) or "nodes"
    return f"GPUs on {nodes} are held for {_gang(job)}; not all are free"


def _gang(job: Job) -> str:
    return f"{_count(job.workers, 'worker')} of {_count(job.gpus_per_worker, 'GPU')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def explanation(world: World, job: JobRecord, state: JobState, at_ms: int) -> Explanation:
    """Return everything `tiresias why` shows of an active job."""
    order = world.engine.order()
    position = next((i for i, other in enumerate(order) if other is job), None)
    ahead = order[:position] if position is not None else []
    taken = sum(other.gpus for other in ahead if other.is_scheduled)
    left = max(0, world.cluster.obtainable_gpus() - taken)
    return Explanation(
        job_id=job.job_id,
        state=state,
        reason="" if job.wait is None else job.wait.reason.value,
        message=wait_message(job, left) or _present_message(job),
        queue_index=job.queue_index,
        attained_gpu_ms=job.gpus * job.executed_at(at_ms),
        next_limit_gpu_ms=world.engine.next_limit_gpu_ms(job),
        position=None if position is None else position + 1,
        ahead_gpus=sum(other.gpus for other in ahead),
        capacity_gpus=world.cluster.usable_gpus(),
        waited_ms=job.waited_at(at_ms),
        promoted_at_waited_ms=world.engine.promotion_wait_ms(job),
        story=tuple(job.story),
    )


def _present_message(job: JobRecord) -> str:
    if job.run is None:
        return job.message or "next in line"
    if job.run.stop_reason is not None:
        return f"run {job.run.run_id} is stopping: {job.run.stop_reason}"
    return f"run {job.run.run_id} is {job.run.phase} on {', '.join(job.run.nodes)}"
