"""Prometheus metrics of a launcher."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from launcher.core.run_state import Book, Phase

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class LauncherMetrics:
    """One registry per launcher, so that several can live in one test process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._runs = Gauge(
            "tiresias_launcher_runs", "Runs by phase", ["phase"], registry=self.registry
        )
        self._ports = Gauge(
            "tiresias_launcher_ports", "Ports given to runs", registry=self.registry
        )
        self._start = Histogram(
            "tiresias_launcher_start_seconds",
            "From the start command until all tasks are up",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stop = Histogram(
            "tiresias_launcher_stop_seconds",
            "From the request to stop until nothing of the run is left",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._log_bytes = Counter(
            "tiresias_launcher_log_read_bytes", "Log bytes sent", registry=self.registry
        )

    def started(self, start_ms: int) -> None:
        self._start.observe(start_ms / 1000)

    def exited(self, ask_to_exit_ms: int | None) -> None:
        if ask_to_exit_ms is not None:
            self._stop.observe(ask_to_exit_ms / 1000)

    def log_read(self, size_bytes: int) -> None:
        self._log_bytes.inc(size_bytes)

    def observe(self, book: Book, ports: int) -> None:
        """Take the gauges' values; called now and then."""
        for phase in Phase:
            count = sum(run.phase is phase for run in book.runs.values())
            self._runs.labels(phase).set(count)
        self._ports.set(ports)
