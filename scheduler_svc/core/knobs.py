"""What the profiler and the operators change: skews, PACKLIMIT, settings."""

import msgspec

from broker.schemas.operator import PackLimitChanged, SettingsChanged, SkewMeasured
from broker.schemas.run import TensorsObserved
from scheduler_svc.core.world import World


def on_skew(world: World, message: SkewMeasured) -> None:
    """A job's skew was measured from its traffic."""
    job = world.jobs.get(message.job_id)
    if job is not None:
        world.remember_skew(job, message.skew)
        world.tell(job, f"skew {message.skew:.3f} measured by {message.source or 'profiler'}")


def on_tensors(world: World, message: TensorsObserved) -> None:
    """The job's own callback lists its tensors: S_J = largest / all (paper section 3.4)."""
    found = world.find_run(message.run_id, message.node)
    total_bytes = sum(message.tensor_bytes)
    if found is None or total_bytes <= 0 or min(message.tensor_bytes) < 0:
        return
    skew = max(message.tensor_bytes) / total_bytes
    world.remember_skew(found[0], skew)
    world.tell(found[0], f"skew {skew:.3f} from {len(message.tensor_bytes)} tensors")


def on_pack_limit(world: World, message: PackLimitChanged) -> None:
    """The profiler refitted PACKLIMIT."""
    settings = msgspec.structs.replace(world.settings, pack_limit=message.pack_limit)
    world.engine.reconfigure(settings, world.now_ms)


def on_settings(world: World, message: SettingsChanged) -> None:
    """Decide by other settings from now on; every view may change."""
    world.engine.reconfigure(message.settings, world.now_ms)
    world.changed_jobs.update(world.jobs)
