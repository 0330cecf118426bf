"""Where GPUs come from, as the service sees it: NVML, or a declared inventory."""

from typing import Protocol

from broker.errors import TiresiasError
from node_agent.core.readings import GpuEvent, GpuReading, ProbedInventory


class ProbeError(TiresiasError):
    """The GPUs cannot be read now; the text says why."""


class GpuSource(Protocol):
    """One caller at a time; every call is bounded in time."""

    @property
    def restarts(self) -> int:
        """How often the source had to be started anew."""
        ...

    async def inventory(self) -> ProbedInventory:
        """List the GPUs; raises `ProbeError`."""
        ...

    async def sample(self) -> tuple[GpuReading, ...]:
        """Read every GPU now, never from memory; raises `ProbeError`."""
        ...

    def take_events(self) -> list[GpuEvent]:
        """Return the errors reported since the last call, also after a failed sample."""
        ...

    async def close(self) -> None: ...
