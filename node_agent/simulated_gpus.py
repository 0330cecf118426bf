"""GPUs that are declared, not found: for machines without any, and for simulations of a cluster."""

from broker.schemas.node import GpuInfo
from node_agent.core.readings import GpuEvent, GpuReading, ProbedGpu, ProbedInventory

MEMORY_BYTES = 80 * 1024**3


class SimulatedGpus:
    """``count`` GPUs with stable names ``SIM-<node>-<index>``, always well, with no numbers."""

    def __init__(self, node: str, count: int) -> None:
        self._gpus = tuple(
            ProbedGpu(
                gpu=GpuInfo(
                    gpu_id=f"SIM-{node}-{index}",
                    index=index,
                    model="simulated",
                    memory_bytes=MEMORY_BYTES,
                    simulated=True,
                )
            )
            for index in range(count)
        )
        self._readings = tuple(GpuReading(gpu_id=probed.gpu.gpu_id) for probed in self._gpus)

    @property
    def restarts(self) -> int:
        return 0

    async def inventory(self) -> ProbedInventory:
        return ProbedInventory(gpus=self._gpus)

    async def sample(self) -> tuple[GpuReading, ...]:
        return self._readings

    def take_events(self) -> list[GpuEvent]:
        return []

    async def close(self) -> None:
        """Nothing to end."""
