"""The state of a job and of a node as people see it."""

from broker.schemas.views import JobState, JobView, NodeView
from scheduler_svc.core.cluster import Node
from scheduler_svc.core.explain import wait_message
from scheduler_svc.core.lifecycle import SHOWN_STATE
from scheduler_svc.core.record import JobRecord
from scheduler_svc.core.world import World


def shown_state(world: World, job: JobRecord) -> JobState:
    """Fold phases into the one word people see."""
    if job.end_state is not None:
        return job.end_state
    if job.run is None:
        return JobState.HELD if job.is_held else JobState.QUEUED
    is_unknown = any(world.cluster.nodes[n].state == "silent" for n in job.run.nodes_left())
    return JobState.UNKNOWN if is_unknown else SHOWN_STATE[job.run.phase]


def job_view(world: World, job: JobRecord) -> JobView:
    """Return the job's view at the core's time."""
    reason, message = _reason(job)
    now_ms = world.now_ms
    placement = job.placement or {}
    return JobView(
        job_id=job.job_id,
        name=job.spec.name,
        user=job.user,
        state=shown_state(world, job),
        reason=reason,
        message=message,
        workers=job.workers,
        gpus_per_worker=job.gpus_per_worker,
        ps=job.spec.ps,
        gpus=job.gpus,
        labels=job.spec.labels,
        queue_index=job.queue_index,
        attained_gpu_ms=job.service_at(now_ms),
        counting=job.counting_since_ms is not None,
        waited_ms=job.queued_at(now_ms),
        skew=job.skew,
        submitted_at_ms=job.submitted_at_ms,
        started_at_ms=job.started_at_ms,
        ended_at_ms=job.ended_at_ms,
        as_of_ms=now_ms,
        run_id=job.run.run_id if job.run is not None else None,
        placement={
            n: tuple(g for gpus in workers for g in gpus) for n, workers in placement.items()
        },
        tasks=job.last_tasks,
        attempts=job.attempts,
        preemptions=job.preemptions,
        failures=job.failures,
        node_losses=job.node_losses,
        exit_code=job.exit_code,
        signal=job.signal,
        runs=tuple(job.history),
    )


def node_view(world: World, node: Node) -> NodeView:
    """Return the node's view."""
    problem = node.problem
    if node.state == "up" and not node.is_whole:
        problem = problem or "its launcher is not running"
    gpus = {gpu_id: gpu for gpu_id, gpu in node.gpus.items() if gpu.is_present}
    return NodeView(
        node=node.name,
        state=node.state,
        host=node.host,
        cordoned=node.is_cordoned,
        has_launcher=node.launcher_boot_id == node.boot_id,
        note=node.note,
        problem=problem,
        gpus=tuple(gpu.info for gpu in gpus.values()),
        unhealthy={gpu_id: gpu.fault for gpu_id, gpu in gpus.items() if gpu.fault is not None},
        details={gpu_id: gpu.fault_detail for gpu_id, gpu in gpus.items() if gpu.fault},
        owners={
            gpu_id: owner
            for gpu_id, gpu in gpus.items()
            if (owner := gpu.owner or gpu.foreign_run) is not None
        },
        as_of_ms=world.now_ms,
    )


def _reason(job: JobRecord) -> tuple[str, str]:
    """The reason from the closed list, and the sentence with its numbers."""
    if job.end_state is not None:
        return job.reason, job.message
    if job.run is not None:
        stop_reason = job.run.stop_reason
        return (stop_reason.value if stop_reason is not None else ""), ""
    if job.wait is None:
        return job.reason, ""
    return job.wait.reason.value, wait_message(job)
