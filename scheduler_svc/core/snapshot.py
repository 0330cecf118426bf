"""The core's state as bytes and back; equal states give equal decisions for ever after."""

import msgspec

from broker.schemas.operator import Settings
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.errors import InvariantError
from scheduler_svc.core.record import JobRecord
from scheduler_svc.core.timers import TimerKind
from scheduler_svc.core.world import World

FORMAT = 1


class Snapshot(msgspec.Struct, kw_only=True):
    """Everything a `World` holds between two inputs."""

    format: int = FORMAT
    now_ms: int
    settings: Settings
    cluster: Cluster
    jobs: list[JobRecord]
    """In the policy's order, then those that have ended."""
    active: int
    """How many of ``jobs`` are in the policy's order."""
    timers: list[tuple[int, TimerKind, int]]
    skews: dict[str, float]


def take(world: World) -> bytes:
    """Return the world as MessagePack."""
    active = [world.jobs[job.job_id] for job in world.engine.order()]
    ended = [job for job in world.jobs.values() if not world.engine.is_active(job)]
    return msgspec.msgpack.encode(
        Snapshot(
            now_ms=world.now_ms,
            settings=world.settings,
            cluster=world.cluster,
            jobs=[*active, *ended],
            active=len(active),
            timers=world.engine.timers.entries(),
            skews=world.skews,
        )
    )


def restore(data: bytes) -> World:
    """Rebuild a world; `InvariantError` if the snapshot is of another format."""
    saved = msgspec.msgpack.decode(data, type=Snapshot)
    if saved.format != FORMAT:
        raise InvariantError(f"snapshot has format {saved.format}, this version reads {FORMAT}")
    world = World(saved.settings)
    world.now_ms = saved.now_ms
    world.cluster.nodes.update(saved.cluster.nodes)
    world.skews = saved.skews
    for job in saved.jobs[: saved.active]:
        world.engine.restore(job)
    world.jobs = {job.job_id: job for job in sorted(saved.jobs, key=lambda job: job.job_id)}
    world.ended = [job.job_id for job in saved.jobs[saved.active :]]
    for job_id, kind, at_ms in saved.timers:
        world.engine.timers.set(job_id, kind, at_ms)
    return world
