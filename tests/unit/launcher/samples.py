"""Commands for the launcher of node n1."""

from typing import Any

import msgspec

from broker.schemas.command import PreemptRun, PrepareRun, StartRun, StopRun, TaskPlacement
from broker.schemas.job import JobSpec
from broker.schemas.run import StopReason

NODE = "n1"


def worker(index: int = 0, *gpu_ids: str, node: str = NODE) -> TaskPlacement:
    return TaskPlacement(role="worker", index=index, rank=index, node=node, gpu_ids=gpu_ids)


def prepare(run_id: str = "7-1", *tasks: TaskPlacement, epoch: int = 1, **spec: Any) -> PrepareRun:
    job_id, attempt = map(int, run_id.split("-"))
    settings: dict[str, Any] = {"name": "näme", "run": "true", "grace": "60s", **spec}
    return PrepareRun(
        node=NODE,
        run_id=run_id,
        epoch=epoch,
        job_id=job_id,
        attempt=attempt,
        user="ada",
        spec=JobSpec(**settings),
        tasks=tasks or (worker(0, "G0"),),
    )


def whole_gang(command: PrepareRun) -> PrepareRun:
    """The same, of a gang that is on this node alone."""
    return msgspec.structs.replace(command, is_whole_gang=True)


def start(run_id: str = "7-1", epoch: int = 1, **cluster: tuple[str, ...]) -> StartRun:
    addresses = cluster or {"worker": ("127.0.0.1:5000",)}
    return StartRun(node=NODE, run_id=run_id, epoch=epoch, cluster=addresses)


def preempt(run_id: str = "7-1", grace_ms: int = 5_000, epoch: int = 1) -> PreemptRun:
    return PreemptRun(node=NODE, run_id=run_id, epoch=epoch, grace_ms=grace_ms)


def stop(
    run_id: str = "7-1",
    reason: StopReason = StopReason.CANCEL,
    grace_ms: int = 5_000,
    epoch: int = 1,
) -> StopRun:
    return StopRun(node=NODE, run_id=run_id, epoch=epoch, reason=reason, grace_ms=grace_ms)
