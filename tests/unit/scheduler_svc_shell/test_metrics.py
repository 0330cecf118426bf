"""Phases of a preemption, GPUs by use, and the endpoint."""

import urllib.error
import urllib.request

import pytest

from broker.clock import ManualClock
from broker.schemas.fact import RunCheckpointSaved, RunEnded, RunRestored, RunStopping
from broker.schemas.node import GpuFaultReason, GpuInfo
from broker.schemas.views import NodeView, RunOutcome
from broker.scrape import served
from scheduler_svc.metrics import SchedulerMetrics
from tests.free_ports import free_ports


@pytest.fixture
def metrics():
    return SchedulerMetrics(ManualClock())


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"tiresias_{name}", labels)


def test_a_preemption_is_measured_from_the_request_to_the_first_step(metrics):
    run = {"job_id": 1, "run_id": "1-1"}
    story = [
        RunStopping(**run, reason="Preempt", for_job=2, at_ms=1_000),
        RunCheckpointSaved(**run, step=5, save_ms=10, asked=True, at_ms=1_400),
        RunEnded(**run, outcome=RunOutcome.PREEMPTED, at_ms=2_000),
        RunRestored(
            job_id=1, run_id="1-2", step=5, restore_ms=20, first_step_ms=3_000, at_ms=9_000
        ),
    ]
    metrics.decided(story, [])
    assert value(metrics, "preemptions_total") == 1
    assert value(metrics, "preemption_save_seconds_sum") == pytest.approx(0.4)
    assert value(metrics, "preemption_stop_seconds_sum") == pytest.approx(1.0)
    assert value(metrics, "first_step_seconds_sum") == pytest.approx(3.0)


def test_other_stops_and_periodic_saves_are_no_preemption(metrics):
    run = {"job_id": 1, "run_id": "1-1"}
    story = [
        RunCheckpointSaved(**run, step=5, save_ms=10, asked=False, at_ms=1),
        RunStopping(**run, reason="Cancel", at_ms=2),
        RunCheckpointSaved(**run, step=6, save_ms=10, asked=True, at_ms=3),
        RunEnded(**run, outcome=RunOutcome.CANCELLED, at_ms=4),
    ]
    metrics.decided(story, [])
    assert value(metrics, "preemptions_total") == 0
    assert value(metrics, "preemption_save_seconds_count") == 0
    assert value(metrics, "preemption_stop_seconds_count") == 0


def test_a_preemption_asked_before_this_leader_is_counted_without_its_time(metrics):
    metrics.decided([RunEnded(job_id=1, run_id="1-1", outcome=RunOutcome.PREEMPTED)], [])
    assert value(metrics, "preemptions_total") == 1
    assert value(metrics, "preemption_stop_seconds_count") == 0


def test_gpus_are_counted_by_use_as_nodes_change(metrics):
    gpus = tuple(GpuInfo(gpu_id=f"g{index}", index=index) for index in range(4))
    node = {
        "node": "n1",
        "gpus": gpus,
        "owners": {"g0": "1-1"},
        "unhealthy": {"g1": GpuFaultReason.ECC},
    }
    metrics.show([NodeView(**node, state="up")])
    uses = {use: value(metrics, "gpus", use=use) for use in ("owned", "unhealthy", "free")}
    assert uses == {"owned": 1, "unhealthy": 1, "free": 2}
    metrics.show([NodeView(**node, state="up", cordoned=True)])
    assert value(metrics, "gpus", use="free") == 0
    assert value(metrics, "gpus", use="unavailable") == 2


async def test_the_snapshot_age_grows_from_the_last_one():
    clock = ManualClock()
    metrics = SchedulerMetrics(clock)
    assert value(metrics, "snapshot_age_seconds") != value(metrics, "snapshot_age_seconds")
    metrics.snapshot_saved()
    await clock.advance_ms(2_500)
    assert value(metrics, "snapshot_age_seconds") == 2.5


def test_the_endpoint_answers_on_loopback_while_it_is_served(metrics, free_port):
    with served(metrics.registry, free_port):
        url = f"http://127.0.0.1:{free_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert b"tiresias_inputs_total" in answer.read()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


def test_without_a_port_nothing_is_served(metrics):
    with served(metrics.registry, 0):
        pass


@pytest.fixture
def free_port():
    return free_ports(1)[0]
