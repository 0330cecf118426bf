"""Why a job is where it is: one sentence, and the numbers behind it."""

from typing import assert_never

from broker.schemas.views import Explanation, JobState, WaitReason
from scheduler_svc.core.job import Job, Wait
from scheduler_svc.core.record import JobRecord
from scheduler_svc.core.world import World


def wait_message(job: Job) -> str:
    """Say with numbers why the job waits; empty if it does not."""
    wait = job.wait
    if wait is None:
        return ""
    match wait.reason:
        case WaitReason.RESOURCES | WaitReason.WAITING_FOR_PREEMPTION:
            return _gpus_message(job, wait)
        case WaitReason.FRAGMENTED | WaitReason.RESERVED:
            return _placement_message(job, wait)
        case WaitReason.NO_NODE_EVER_FITS:
            return (
                f"never fits: {job.workers} workers of {job.gpus_per_worker} GPUs; "
                f"the cluster has {wait.free_gpus} usable GPUs"
            )
        case WaitReason.NODES_CORDONED:
            return (
                f"needs {job.gpus} GPUs, only {wait.free_gpus} are on nodes in use; "
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
            return f"gives its {job.gpus} GPUs to job {wait.for_job}"
        return f"needs {wait.needed_gpus} GPUs; {wait.free_gpus} are left by the jobs ahead of it"
    if wait.for_job is None:
        return f"waits for {job.gpus} GPUs that are being released"
    return f"waits for the preemption of job {wait.for_job}, whose GPUs are held for it"


def _placement_message(job: Job, wait: Wait) -> str:
    gang = f"{job.workers} workers of {job.gpus_per_worker} GPUs"
    if wait.reason is WaitReason.FRAGMENTED:
        return f"{wait.free_gpus} GPUs are left, but no set of nodes takes {gang} now"
    return f"GPUs on {', '.join(job.claim or ()) or 'nodes'} are held for {gang}; not all are free"


def explanation(world: World, job: JobRecord, state: JobState, at_ms: int) -> Explanation:
    """Return everything `tiresias why` shows of an active job."""
    order = world.engine.order()
    position = next((i for i, other in enumerate(order) if other is job), None)
    ahead = order[:position] if position is not None else []
    return Explanation(
        job_id=job.job_id,
        state=state,
        reason="" if job.wait is None else job.wait.reason.value,
        message=wait_message(job) or _present_message(job),
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
