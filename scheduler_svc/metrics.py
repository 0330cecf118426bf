"""Prometheus metrics of one scheduler, in its own registry; units are in the names."""

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from broker.clock import Clock
from broker.schemas.base import Message, Output, tag_of
from broker.schemas.fact import JobEnded, RunCheckpointSaved, RunEnded, RunRestored, RunStopping
from broker.schemas.run import StopReason
from broker.schemas.views import JobState, JobView, NodeView, RunOutcome
from scheduler_svc.fold import Step, View

_FAST_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_SLOW_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
_Gauges = dict[tuple[str, str], int]
"""What one view adds to the gauges: (gauge, label value) -> count."""


class SchedulerMetrics:
    """Counts what the service does and what the views say."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_at_ms: dict[str, int] = {}
        self._shown: dict[tuple[str, str], _Gauges] = {}
        self._snapshot_at_ms: int | None = None
        self.registry = CollectorRegistry()
        self._make_flow_metrics()
        self._make_state_metrics()
        self._make_preemption_metrics()

    def _make_flow_metrics(self) -> None:
        self.inputs = self._counter("inputs", "inputs handled", "type")
        self.outputs = self._counter("outputs", "decisions stored", "type")
        self.dead_letters = self._counter("dead_letters", "unreadable inputs put aside")
        self.divergences = self._counter("divergences", "recorded decisions not decided again")
        self.step_downs = self._counter("step_downs", "ends of leadership on an error", "reason")
        self.decision_seconds = self._histogram(
            "decision_latency_seconds", "from the log's time of an input to its stored decisions"
        )
        self.handle_seconds = self._histogram("handle_seconds", "time of one input in the core")
        self.unsayable = self._gauge("unsayable_outputs", "decisions that no message can hold")
        self.position_lag = self._gauge("position_lag_inputs", "inputs stored and not decided yet")

    def _make_state_metrics(self) -> None:
        self.gauges = {
            "jobs": self._gauge("jobs", "active jobs", "state"),
            "queue": self._gauge("queue_jobs", "waiting jobs", "queue"),
            "gpus": self._gauge("gpus", "GPUs known", "use"),
        }
        self.ended_jobs = self._counter("ended_jobs", "jobs that ended", "state")
        self.snapshot_failures = self._counter("snapshot_failures", "snapshots not written")
        self._gauge("snapshot_age_seconds", "age of the newest snapshot").set_function(
            self._snapshot_age_seconds
        )

    def _make_preemption_metrics(self) -> None:
        self.preemptions = self._counter("preemptions", "runs put aside for other jobs")
        self.save_seconds = self._histogram(
            "preemption_save_seconds", "from the request to stop to the save", _SLOW_S
        )
        self.stop_seconds = self._histogram(
            "preemption_stop_seconds", "from the request to stop to free GPUs", _SLOW_S
        )
        self.first_step_seconds = self._histogram(
            "first_step_seconds", "from the start of a run's process to its first step", _SLOW_S
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tiresias_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tiresias_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _FAST_S) -> Histogram:
        return Histogram(f"tiresias_{name}", text, buckets=buckets, registry=self.registry)

    def handled(self, step: Step, seconds: float) -> None:
        """Count one input and the time it took in the core."""
        self.handle_seconds.observe(seconds)
        self.inputs.labels(_type_of(step.message) if step.message else "unreadable").inc()

    def decided(self, outputs: Iterable[Output], input_times_ms: Iterable[int]) -> None:
        """Count decisions now stored, and how long their inputs waited for that."""
        now_ms = self._clock.now_ms()
        for at_ms in input_times_ms:
            self.decision_seconds.observe(max(0, now_ms - at_ms) / 1000)
        for output in outputs:
            self.outputs.labels(_type_of(output)).inc()
            self._note_phase(output)

    def _note_phase(self, output: Output) -> None:
        match output:
            case RunStopping(reason=StopReason.PREEMPT):
                self._asked_at_ms[output.run_id] = output.at_ms
            case RunCheckpointSaved(asked=True) if output.run_id in self._asked_at_ms:
                waited_ms = output.at_ms - self._asked_at_ms[output.run_id]
                self.save_seconds.observe(waited_ms / 1000)
            case RunEnded():
                asked_at_ms = self._asked_at_ms.pop(output.run_id, None)
                if output.outcome is RunOutcome.PREEMPTED:
                    self.preemptions.inc()
                    if asked_at_ms is not None:
                        self.stop_seconds.observe((output.at_ms - asked_at_ms) / 1000)
            case RunRestored():
                self.first_step_seconds.observe(output.first_step_ms / 1000)
            case JobEnded():
                self.ended_jobs.labels(output.state.value).inc()
            case _:
                pass

    def show(self, views: Iterable[View]) -> None:
        """Bring the gauges of jobs, queues and GPUs up to changed views."""
        for view in views:
            key, new = _shown_by(view)
            old = self._shown.pop(key, {})
            if new:
                self._shown[key] = new
            for gauge, label in old.keys() | new.keys():
                change = new.get((gauge, label), 0) - old.get((gauge, label), 0)
                self.gauges[gauge].labels(label).inc(change)

    def snapshot_saved(self) -> None:
        self._snapshot_at_ms = self._clock.monotonic_ms()

    def _snapshot_age_seconds(self) -> float:
        if self._snapshot_at_ms is None:
            return float("nan")
        return (self._clock.monotonic_ms() - self._snapshot_at_ms) / 1000


def _type_of(message: Message) -> str:
    return tag_of(type(message))


def _shown_by(view: View) -> tuple[tuple[str, str], _Gauges]:
    match view:
        case JobView():
            key = ("job", str(view.job_id))
            if view.state.is_terminal:
                return key, {}
            shown = {("jobs", view.state.value): 1}
            if view.state is JobState.QUEUED:
                shown["queue", str(view.queue_index)] = 1
            return key, shown
        case NodeView():
            uses = Tally(_use_of(gpu.gpu_id, view) for gpu in view.gpus)
            return ("node", view.node), {("gpus", use): count for use, count in uses.items()}


def _use_of(gpu_id: str, view: NodeView) -> str:
    if gpu_id in view.owners:
        return "owned"
    if gpu_id in view.unhealthy:
        return "unhealthy"
    return "free" if view.state == "up" and not view.cordoned else "unavailable"
