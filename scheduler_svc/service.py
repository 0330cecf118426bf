"""The scheduler service: recover, claim leadership, lead; on any doubt stop and recover again.

It never tries to mend its state while it runs. An append that fails or is fenced, or a core that
raises, ends `SchedulerService.run` with an error: the process ends with exit code 1, whoever
manages it starts it again, and recovery reads from the logs what is true.
"""

import asyncio
import importlib.metadata
import logging
import uuid

from broker import codec
from broker.bus import Bus
from broker.clock import Clock
from broker.schemas.operator import LeaderRecord
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.recovery import CoreType, recover
from scheduler_svc.snapshots import SnapshotStore
from scheduler_svc.term import Term

_log = logging.getLogger(__name__)


class SchedulerService:
    """One scheduler on a bus whose streams and buckets exist."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        config: SchedulerConfig,
        metrics: SchedulerMetrics,
        *,
        core_type: CoreType = Scheduler,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._config = config
        self._metrics = metrics
        self._core_type = core_type
        self._store = SnapshotStore(bus, config.state_dir / "snapshots")

    async def run(self, stop: asyncio.Event) -> None:
        """Lead until ``stop`` is set. Raises what `recover` and `Term.lead` raise."""
        began_ms = self._clock.monotonic_ms()
        recovered = await recover(
            self._bus, await self._store.load(), core_type=self._core_type, claim=self._claim
        )
        self._metrics.divergences.inc(recovered.divergences)
        _log.info(
            "recovered",
            extra={
                "epoch": recovered.epoch,
                "snapshot": recovered.snapshot_seq,
                "input": recovered.fold.input_seq,
                "missing": len(recovered.missing),
                "divergences": recovered.divergences,
                "took_ms": self._clock.monotonic_ms() - began_ms,
            },
        )
        term = Term(
            self._bus,
            self._clock,
            self._config,
            recovered,
            store=self._store,
            metrics=self._metrics,
        )
        await term.lead(stop)

    async def _claim(self, decided_seq: int) -> int:
        record = LeaderRecord(
            instance=self._config.instance, version=_version(), input_seq=decided_seq
        )
        message_id = f"leader/{self._config.instance}/{uuid.uuid4().hex}"
        return await self._bus.claim_leadership(codec.encode(record), message_id=message_id)


def _version() -> str:
    """Return the version of the installed package, or ``source`` when run from a checkout."""
    try:
        return importlib.metadata.version("tiresias-mesh")
    except importlib.metadata.PackageNotFoundError:
        return "source"
