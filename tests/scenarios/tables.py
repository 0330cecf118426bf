"""Jobs, nodes and the order as small tables, at the time of the question."""

from collections.abc import Iterator

from broker.schemas.views import Explanation, JobView, NodeView
from tests.scenarios.wording import gpu_seconds, indexes, named, seconds
from tests.unit.scheduler_svc.mesh import Mesh

JOB_COLUMNS = ("job", "state", "reason", "queue", "service", "GPUs")
NODE_COLUMNS = ("node", "state", "GPUs", "free", "faulty", "owners")


def jobs(mesh: Mesh, names: dict[int, str]) -> list[str]:
    """Every job ever submitted; of ended ones what was last told of them."""
    views = {view.job_id: view for view in mesh.core.all_views() if isinstance(view, JobView)}
    rows = [_job_row(views.get(i) or mesh.view(i), name, mesh.now_ms) for i, name in names.items()]
    return _table(JOB_COLUMNS, rows)


def nodes(mesh: Mesh, names: dict[int, str]) -> list[str]:
    views = [view for view in mesh.core.all_views() if isinstance(view, NodeView)]
    return _table(NODE_COLUMNS, [_node_row(view, names) for view in views])


def order(mesh: Mesh, names: dict[int, str]) -> list[str]:
    """Queue by queue, highest first; a star marks those that hold or are promised GPUs."""
    queues: dict[int, list[str]] = {}
    for job in mesh.core._world.engine.order():
        star = "*" if job.is_scheduled else ""
        queues.setdefault(job.queue_index, []).append(names[job.job_id] + star)
    return [f"Q{index + 1}: {' '.join(queue)}" for index, queue in queues.items()] or ["empty"]


def why(job: str, explanation: Explanation | None) -> Iterator[str]:
    if explanation is None:
        yield f"{job}: not active"
        return
    reason = f"{explanation.reason}: " if explanation.reason else ""
    yield f"{job}: {explanation.state}, {reason}{explanation.message}"
    limit = explanation.next_limit_gpu_ms
    until = "" if limit is None else f" of {gpu_seconds(limit)}"
    promotion = explanation.promoted_at_waited_ms
    of = "" if promotion is None else f" of {seconds(promotion)}"
    yield (
        f"  place {explanation.position} in the order; {explanation.ahead_gpus} GPUs wanted ahead; "
        f"{gpu_seconds(explanation.attained_gpu_ms)}{until} in "
        f"Q{explanation.queue_index + 1}; waited {seconds(explanation.waited_ms)}{of}"
    )


def counts(job: str, view: JobView) -> str:
    return (
        f"{job}: {view.attempts} runs, {view.preemptions} preemptions, "
        f"{view.failures} failures, {view.node_losses} losses"
    )


def _job_row(view: JobView, name: str, now_ms: int) -> tuple[str, ...]:
    grown = view.gpus * (now_ms - view.as_of_ms) if view.counting else 0
    held = " ".join(f"{node}:{len(gpus)}" for node, gpus in view.placement.items())
    service = gpu_seconds(view.attained_gpu_ms + grown)
    return (
        name,
        view.state,
        view.reason or "-",
        f"Q{view.queue_index + 1}",
        service,
        held or "-",
    )


def _node_row(view: NodeView, names: dict[int, str]) -> tuple[str, ...]:
    state = f"{view.state}, cordoned" if view.cordoned else view.state
    if view.problem:
        state += f", {view.problem}"
    free = [
        info.gpu_id
        for info in view.gpus
        if info.gpu_id not in view.owners and info.gpu_id not in view.unhealthy
    ]
    owners: dict[str, list[str]] = {}
    for gpu_id, run_id in view.owners.items():
        owners.setdefault(named(run_id, names), []).append(gpu_id)
    return (
        view.node,
        state,
        str(len(view.gpus)),
        indexes(free) or "-",
        " ".join(f"{indexes([g])}:{reason}" for g, reason in view.unhealthy.items()) or "-",
        " ".join(f"{run}:{indexes(gpu_ids)}" for run, gpu_ids in owners.items()) or "-",
    )


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their widest cell, parted by two spaces."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
