"""Numbers for Prometheus. Labels are the node and its GPUs, so their number is bounded.

A number that cannot be read now is taken away, not repeated.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from broker.schemas.node import GpuSample
from node_agent.core.health import Fault

_GPU_LABELS = ("node", "gpu")


class AgentMetrics:
    """The metrics of one agent, in a registry of its own."""

    def __init__(self, node: str) -> None:
        self.registry = CollectorRegistry()
        self._node = node
        self._utilisation = self._gpu_gauge("utilisation_percent", "Busy share of the GPU")
        self._memory = self._gpu_gauge("memory_used_bytes", "GPU memory in use")
        self._temperature = self._gpu_gauge("temperature_celsius", "GPU temperature")
        self._health = self._gpu_gauge("healthy", "1 if the GPU is fit for work, else 0")
        self._heartbeats = self._counter("tiresias_heartbeats_sent", "Heartbeats sent")
        self._restarts = Gauge(
            "tiresias_nvml_restarts",
            "Times the NVML probe was started anew",
            ("node",),
            registry=self.registry,
        ).labels(node)
        self._unknown_lines = Gauge(
            "tiresias_job_lines_unknown",
            "Lines of jobs with a type that this version does not know",
            ("node",),
            registry=self.registry,
        ).labels(node)

    def heartbeat_sent(self) -> None:
        self._heartbeats.inc()

    def counted(self, nvml_restarts: int, unknown_lines: int) -> None:
        """Take over counts that others keep."""
        self._restarts.set(nvml_restarts)
        self._unknown_lines.set(unknown_lines)

    def sampled(self, samples: Iterable[GpuSample]) -> None:
        """Show these readings and no older ones."""
        for gauge in (self._utilisation, self._memory, self._temperature):
            gauge.clear()
        for sample in samples:
            self._set(self._utilisation, sample.gpu_id, sample.utilisation_percent)
            self._set(self._memory, sample.gpu_id, sample.memory_used_bytes)
            self._set(self._temperature, sample.gpu_id, sample.temperature_celsius)

    def judged(self, gpu_ids: Iterable[str], faults: Mapping[str, Fault]) -> None:
        """Show which of the offered GPUs are fit for work."""
        self._health.clear()
        for gpu_id in gpu_ids:
            self._set(self._health, gpu_id, int(gpu_id not in faults))

    def _set(self, gauge: Gauge, gpu_id: str, value: int | None) -> None:
        if value is not None:
            gauge.labels(self._node, gpu_id).set(value)

    def _gpu_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"tiresias_gpu_{name}", text, _GPU_LABELS, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("node",), registry=self.registry).labels(self._node)
