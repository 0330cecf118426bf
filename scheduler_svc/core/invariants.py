"""Rules that hold after every input. `check` raises `InvariantError` naming what is broken."""

from collections.abc import Iterator

from scheduler_svc.core.errors import InvariantError
from scheduler_svc.core.job import gpus_of
from scheduler_svc.core.lifecycle import JobPhase
from scheduler_svc.core.record import JobRecord
from scheduler_svc.core.world import World


def check(world: World) -> None:
    """Check every rule; cost grows with jobs and GPUs, so it is for tests and for suspicion."""
    problems = [*_job_problems(world), *_ownership_problems(world), *_queue_problems(world)]
    if problems:
        raise InvariantError("; ".join(problems))


def _job_problems(world: World) -> Iterator[str]:
    for job in world.jobs.values():
        if (job.phase is JobPhase.ACTIVE) != (job.run is not None):
            yield f"job {job.job_id} is {job.phase} with run {job.run}"
        if (job.placement is None) != (job.run is None):
            yield f"job {job.job_id} has placement {job.placement} with run {job.run}"
        if job.phase is JobPhase.ENDED and world.engine.is_active(job):
            yield f"job {job.job_id} is over and still in a queue"
        if min(job.executed_ms, job.service_gpu_ms, job.waited_ms, job.queued_ms) < 0:
            yield f"job {job.job_id} has a negative clock"
        if job.counting_since_ms is not None and job.waiting_since_ms is not None:
            yield f"job {job.job_id} runs and waits at once"


def _ownership_problems(world: World) -> Iterator[str]:
    """Every GPU has at most one owner; a run owns all of its gang or none."""
    owners = {
        (node.name, gpu_id): gpu
        for node in world.cluster.nodes.values()
        for gpu_id, gpu in node.gpus.items()
        if gpu.owner is not None
    }
    for job in world.jobs.values():
        if job.run is None:
            continue
        gpus = gpus_of(job.placement or {})
        if len(gpus) != job.gpus:
            yield f"run {job.run.run_id} holds {len(gpus)} GPUs of {job.gpus}"
        for item in gpus:
            gpu = owners.pop(item, None)
            if gpu is None or gpu.owner != job.run.run_id:
                yield f"run {job.run.run_id} does not own {item}"
            elif gpu.fault and not job.is_releasing and item[0] not in job.run.exits:
                yield f"run {job.run.run_id} runs on {item}: {gpu.fault}"
    for item, gpu in owners.items():
        yield f"GPU {item} is owned by run {gpu.owner}, which is over"


def _queue_problems(world: World) -> Iterator[str]:
    """A queue's members lie within its limit; claims promise no GPU twice."""
    promised: set[tuple[str, str]] = set()
    for job in world.engine.order():
        assert isinstance(job, JobRecord)
        limit_gpu_ms = world.engine.next_limit_gpu_ms(job)
        served_gpu_ms = job.gpus * job.executed_at(world.now_ms)
        if limit_gpu_ms is not None and served_gpu_ms >= limit_gpu_ms:
            yield f"job {job.job_id} has {served_gpu_ms} in the queue up to {limit_gpu_ms}"
        for item in gpus_of(job.claim or {}):
            if item in promised:
                yield f"GPU {item} is promised twice"
            promised.add(item)
