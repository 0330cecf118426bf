"""From looks at the GPUs to inputs: join the node, then tell each change of a GPU's health.

Until the GPUs can be listed the node joins with none, and the reason; each look tries again.
A change is on disk before it is told, so that no restart of the agent forgets a fault.
"""

import asyncio
import logging
import uuid

import msgspec

from broker.clock import Clock
from broker.schemas.node import GpuHealthChanged
from node_agent import state_file
from node_agent.config import AgentConfig
from node_agent.core import inventory
from node_agent.core.health import Change, HealthBook
from node_agent.core.inventory import Gpus, Offer
from node_agent.core.readings import GpuReading
from node_agent.gpu_source import GpuSource, ProbeError
from node_agent.outbox import Outbox
from node_agent.state_file import AgentState, StateFileError

logger = logging.getLogger(__name__)


class GpuWatch:
    """The GPUs of one node. One `look` at a time."""

    def __init__(
        self, source: GpuSource, clock: Clock, outbox: Outbox, config: AgentConfig
    ) -> None:
        self._source = source
        self._clock = clock
        self._outbox = outbox
        self._config = config
        self._instance = uuid.uuid4().hex[:12]
        self._told = 0
        self._told_problem: str | None = None
        self._health: HealthBook | None = None
        self._saved = AgentState()
        self._answered_ms = clock.monotonic_ms()
        self.offered: tuple[str, ...] = ()
        """Ids of the GPUs that the node offers, healthy or not."""

    @property
    def health(self) -> HealthBook | None:
        """None until the GPUs could be listed."""
        return self._health

    async def look(self) -> tuple[GpuReading, ...] | None:
        """Read and judge all GPUs; return the readings of those that answer.

        None if the source as a whole does not answer; bounded in time by the source.
        """
        try:
            health = self._health or await self._join()
            readings = await self._source.sample()
        except (ProbeError, StateFileError) as error:
            await self._note_failure(str(error))
            return None
        self._answered_ms = self._clock.monotonic_ms()
        now_ms = self._clock.now_ms()
        await self._tell(self._judged_events() + health.observe(readings, now_ms))
        return tuple(r for r in readings if r.gpu_id in self.offered and not r.problem)

    async def _join(self) -> HealthBook:
        found = inventory.described(await self._source.inventory())
        saved = await asyncio.to_thread(state_file.load, self._config.state_file)
        faults = {
            gpu_id: fault
            for gpu_id, fault in saved.faults.items()
            if gpu_id not in self._config.cleared_faults
        }
        host = self._config.host
        gpus = inventory.with_remembered(
            found.gpus, saved.gpus, same_boot=saved.boot_id == host.boot_id, faulty=faults
        )
        seen = inventory.visible(gpus, self._config.device_mask)
        offer = Offer(
            gpus=seen.gpus, problem="; ".join(filter(None, (found.problem, seen.problem)))
        )
        self.offered = tuple(gpu.gpu_id for gpu in offer.gpus)
        self._health = HealthBook(
            self.offered, faults, boot_id=host.boot_id, rules=self._config.health_rules
        )
        await self._save(gpus)
        self._tell_joined(offer)
        return self._health

    async def _note_failure(self, problem: str) -> None:
        if self._health is None:
            if problem != self._told_problem:
                self._tell_joined(Offer(problem=problem))
            return
        changes = self._judged_events()
        silent_ms = self._clock.monotonic_ms() - self._answered_ms
        if silent_ms >= self._config.hung_after_ms:
            changes += self._health.note_hung(problem, self._clock.now_ms())
        await self._tell(changes)

    def _judged_events(self) -> list[Change]:
        changes: list[Change] = []
        for event in self._source.take_events():
            logger.warning("GPU error", extra={"gpu": event.gpu_id, "xid": event.xid})
            if self._health is not None:
                changes += self._health.note_event(event, self._clock.now_ms())
        return changes

    def _tell_joined(self, offer: Offer) -> None:
        faults = {} if self._health is None else self._health.faults
        reasons = {gpu_id: fault.reason for gpu_id, fault in faults.items()}
        joined = inventory.node_joined(self._config.host, offer, reasons)
        self._told_problem = offer.problem
        self._outbox.put("joined", joined, self._next_id("joined"))
        logger.info("node joins", extra={"gpus": len(offer.gpus), "problem": offer.problem})

    async def _tell(self, changes: list[Change]) -> None:
        await self._save(self._saved.gpus)
        for change in changes:
            fault = change.fault
            message = GpuHealthChanged(
                node=self._config.host.node,
                gpu_id=change.gpu_id,
                reason=fault.reason if fault else None,
                detail=fault.detail if fault else "",
            )
            self._outbox.put(f"health/{change.gpu_id}", message, self._next_id("health"))
            logger.warning(
                "GPU is out of use" if fault else "GPU is back in use",
                extra=msgspec.structs.asdict(message),
            )

    async def _save(self, gpus: Gpus) -> None:
        """Write the state if it changed. A full disk must not hide a fault: log, try next time."""
        if self._health is None:
            return
        boot_id = self._config.host.boot_id
        state = AgentState(boot_id=boot_id, gpus=gpus, faults=self._health.faults)
        if state == self._saved:
            return
        try:
            await asyncio.to_thread(state_file.save, self._config.state_file, state)
        except OSError:
            logger.exception("cannot save GPU faults", extra={"path": self._config.state_file})
            self._saved = msgspec.structs.replace(self._saved, gpus=gpus)
            return
        self._saved = state

    def _next_id(self, what: str) -> str:
        self._told += 1
        return f"{self._config.host.node}/{what}/{self._instance}/{self._told}"
