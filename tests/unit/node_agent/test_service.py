"""The agent on a bus in memory: joining, heartbeats, telemetry, faults, and an absent bus."""

import asyncio
import json

from broker.errors import BusError
from broker.schemas.node import GpuFaultReason, GpuHealthChanged, NodeJoined, NodeLeft
from broker.schemas.run import RunCheckpointed, RunResumed
from node_agent import state_file
from node_agent.core.readings import GpuEvent
from node_agent.simulated_gpus import SimulatedGpus
from tests.unit.node_agent.support import until


def health(world) -> list[tuple[str, GpuFaultReason | None]]:
    return [(change.gpu_id, change.reason) for change in world.inputs(GpuHealthChanged)]


async def test_a_node_joins_once_and_leaves_on_a_clean_stop(world) -> None:
    world.start()
    await world.look(3)
    (joined,) = world.inputs(NodeJoined)
    assert [gpu.gpu_id for gpu in joined.gpus] == world.gpus.ids
    assert (joined.boot_id, joined.problem, joined.unhealthy) == ("boot-1", "", {})
    await world.stop()
    assert isinstance(world.inputs()[-1], NodeLeft)
    assert world.gpus.is_closed
    assert not (world.folder / "run" / "job.sock").exists()


async def test_heartbeats_come_each_two_seconds_and_are_numbered(world) -> None:
    world.start()
    await world.clock.advance_ms(60_000)
    numbers = [heartbeat.sequence for heartbeat in world.heartbeats]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 60_000 / 2_200 <= len(numbers) <= 60_000 / 1_800 + 1
    await world.stop()


async def test_heartbeats_are_skipped_while_the_bus_is_away_and_nothing_is_sent_again(
    world,
) -> None:
    world.start()
    await world.look()
    world.bus.disconnect()
    before = len(world.heartbeats)
    await world.clock.advance_ms(20_000)
    assert len(world.heartbeats) == before
    world.bus.reconnect()
    await world.clock.advance_ms(2_500)
    assert world.heartbeats[-1].sequence <= before + 2
    assert len(world.inputs(NodeJoined)) == 1
    await world.stop()


async def test_a_slow_driver_delays_no_heartbeat_and_repeats_no_number(world) -> None:
    world.start()
    await world.look(2)
    assert world.telemetry[-1].gpus[0].utilisation_percent == world.gpus.samples
    assert world.telemetry[-1].stale_since_ms is None
    last_good_ms = world.telemetry[-1].at_ms
    world.gpus.stuck = asyncio.Event()
    beats = len(world.heartbeats)
    await world.look(3)
    assert len(world.heartbeats) > beats
    assert [told.gpus for told in world.telemetry[-3:]] == [(), (), ()]
    assert {told.stale_since_ms for told in world.telemetry[-3:]} == {last_good_ms}
    world.gpus.stuck.set()
    await world.look(2)
    assert world.telemetry[-1].stale_since_ms is None
    assert len(world.telemetry[-1].gpus) == 4
    await world.stop()


async def test_one_lost_gpu_goes_out_alone_and_is_not_sampled(world) -> None:
    world.start()
    await world.look()
    world.gpus.lost.add("GPU-2")
    await world.look(4)
    assert health(world) == [("GPU-2", GpuFaultReason.LOST)]
    assert [sample.gpu_id for sample in world.telemetry[-1].gpus] == ["GPU-0", "GPU-1", "GPU-3"]
    registry = world.metrics.registry
    healthy = [
        registry.get_sample_value("tiresias_gpu_healthy", {"node": "n1", "gpu": gpu_id})
        for gpu_id in world.gpus.ids
    ]
    assert healthy == [1, 1, 0, 1]
    assert (
        registry.get_sample_value(
            "tiresias_gpu_temperature_celsius", {"node": "n1", "gpu": "GPU-2"}
        )
        is None
    )
    await world.stop()


async def test_an_xid_takes_the_gpu_out_even_when_the_probe_fails_at_that_moment(world) -> None:
    world.start()
    await world.look(2)
    world.gpus.events.append(GpuEvent(gpu_id="GPU-1", xid=79))
    world.gpus.problem = "NVML did not answer within 5000 ms"
    await world.look()
    assert health(world) == [("GPU-1", GpuFaultReason.LOST)]
    await world.stop()


async def test_a_flag_outlives_the_agent_until_the_machine_restarts_and_a_probe_passes(
    world,
) -> None:
    world.start()
    await world.look()
    world.gpus.events.append(GpuEvent(gpu_id="GPU-1", xid=95))
    await world.look()
    await world.kill()

    world.start()
    await world.look(6)
    assert world.inputs(NodeJoined)[-1].unhealthy == {"GPU-1": GpuFaultReason.ECC}
    assert health(world) == [("GPU-1", GpuFaultReason.ECC)]
    await world.stop()

    world.boot_id = "boot-2"
    world.start()
    await world.look(6)
    assert world.inputs(NodeJoined)[-1].unhealthy == {"GPU-1": GpuFaultReason.ECC}
    assert health(world)[1:] == [("GPU-1", None)]
    await world.stop()


async def test_an_operator_clears_a_flag_at_the_start(world) -> None:
    world.start()
    await world.look()
    world.gpus.events.append(GpuEvent(gpu_id="GPU-1", xid=95))
    await world.look()
    await world.stop()
    world.cleared = ("GPU-1",)
    world.start()
    await world.look(4)
    assert world.inputs(NodeJoined)[-1].unhealthy == {}
    assert state_file.load(world.folder / "state" / "gpus.json").faults == {}
    await world.stop()


async def test_a_gpu_that_vanished_while_the_agent_was_down_is_lost_and_shifts_no_mask(
    world,
) -> None:
    world.mask = "1,2"
    world.start()
    await world.look()
    await world.stop()
    world.gpus.ids.remove("GPU-2")
    world.start()
    await world.look(4)
    joined = world.inputs(NodeJoined)[-1]
    assert [(gpu.gpu_id, gpu.index) for gpu in joined.gpus] == [("GPU-1", 1), ("GPU-2", 2)]
    assert health(world) == [("GPU-2", GpuFaultReason.LOST)]
    await world.stop()


async def test_without_nvml_the_node_joins_with_no_gpu_and_the_reason_and_again_when_it_works(
    world,
) -> None:
    world.gpus.problem = "driver/library version mismatch"
    world.start()
    await world.look(5)
    (joined,) = world.inputs(NodeJoined)
    assert (joined.gpus, joined.problem) == ((), "driver/library version mismatch")
    assert world.telemetry[-1].stale_since_ms is not None
    world.gpus.problem = ""
    await world.look(2)
    assert len(world.inputs(NodeJoined)[-1].gpus) == 4
    assert world.inputs(NodeJoined)[-1].problem == ""
    await world.stop()


async def test_a_hung_driver_takes_all_gpus_out_and_they_come_back(world) -> None:
    world.start()
    await world.look(2)
    world.gpus.problem = "NVML did not answer within 5000 ms"
    await world.look(10)
    assert health(world) == []
    await world.look(8)
    assert health(world) == [(gpu_id, GpuFaultReason.HUNG) for gpu_id in world.gpus.ids]
    assert "did not answer" in world.inputs(GpuHealthChanged)[0].detail
    world.gpus.problem = ""
    await world.look(5)
    assert health(world)[4:] == [(gpu_id, None) for gpu_id in world.gpus.ids]
    await world.stop()


async def test_an_unreadable_state_file_offers_nothing_and_says_how_to_go_on(world) -> None:
    path = world.folder / "state" / "gpus.json"
    path.parent.mkdir()
    path.write_text("{")
    world.start()
    await world.look(2)
    (joined,) = world.inputs(NodeJoined)
    assert joined.gpus == ()
    assert "remove it to clear all GPU faults" in joined.problem
    path.unlink()
    await world.look(2)
    assert len(world.inputs(NodeJoined)[-1].gpus) == 4
    await world.stop()


async def test_telemetry_that_the_server_refuses_stops_nothing(world, monkeypatch) -> None:
    world.start()
    await world.look()
    publish = world.bus.publish

    async def refuse(subject, data) -> None:
        if ".tel." in subject:
            raise BusError("message is too large")
        await publish(subject, data)

    with monkeypatch.context() as broken:
        broken.setattr(world.bus, "publish", refuse)
        await world.clock.advance_ms(5_000)
    await world.look()
    await world.stop()


async def test_a_full_disk_hides_no_fault_and_is_tried_again(world, monkeypatch) -> None:
    def full(path, state) -> None:
        raise OSError(28, "No space left on device")

    world.start()
    await world.look(2)
    with monkeypatch.context() as broken:
        broken.setattr(state_file, "save", full)
        world.gpus.events.append(GpuEvent(gpu_id="GPU-1", xid=95))
        await world.look(2)
    assert health(world) == [("GPU-1", GpuFaultReason.ECC)]
    path = world.folder / "state" / "gpus.json"
    assert state_file.load(path).faults == {}
    await world.look()
    assert list(state_file.load(path).faults) == ["GPU-1"]
    await world.stop()


async def test_declared_gpus_join_with_stable_names_and_no_numbers(world) -> None:
    world.gpus = SimulatedGpus("n1", 2)
    world.start()
    await world.look(2)
    (joined,) = world.inputs(NodeJoined)
    assert [(gpu.gpu_id, gpu.simulated) for gpu in joined.gpus] == [
        ("SIM-n1-0", True),
        ("SIM-n1-1", True),
    ]
    assert [sample.utilisation_percent for sample in world.telemetry[-1].gpus] == [None, None]
    await world.stop()
    world.gpus = SimulatedGpus("n1", 1)
    world.start()
    await world.look(4)
    assert len(world.inputs(NodeJoined)[-1].gpus) == 1
    assert health(world) == []
    await world.stop()


async def test_while_the_bus_is_away_only_the_newest_health_of_a_gpu_waits(world) -> None:
    world.start()
    await world.look(2)
    world.bus.disconnect()
    world.gpus.hot.add("GPU-3")
    await world.clock.advance_ms(10_000)
    assert "Thermal" in (world.folder / "state" / "gpus.json").read_text()
    world.gpus.hot.clear()
    await world.clock.advance_ms(20_000)
    world.bus.reconnect()
    await world.look(8)
    assert health(world)[-1] == ("GPU-3", None)
    assert len(health(world)) <= 2
    await world.stop()


async def test_stopping_without_a_bus_ends_in_bounded_time(world) -> None:
    world.bus.disconnect()
    world.start()
    await world.clock.advance_ms(2_000)
    await world.stop()
    assert world.inputs() == []


async def test_a_job_tells_progress_and_its_saves_reach_the_log(world) -> None:
    world.start()
    await world.look()
    reader, writer = await asyncio.open_unix_connection(world.folder / "run" / "job.sock")
    for line in (
        {"type": "hello", "run_id": "7-1", "task": "worker-0", "rank": 0},
        {"type": "resumed", "step": 3, "restore_ms": 40, "first_step_ms": 2100},
        {"type": "progress", "step": 12, "total_steps": 100, "metrics": {"loss": 0.3}},
        {"type": "saved", "step": 12, "path": "/c", "save_ms": 31, "size_bytes": 9},
        {"type": "saved", "step": 13, "path": "/c", "save_ms": 31, "size_bytes": 9, "asked": True},
    ):
        writer.write(json.dumps(line).encode() + b"\n")
    await writer.drain()
    await until(lambda: len(world.inputs(RunCheckpointed)) == 2)
    assert [saved.asked for saved in world.inputs(RunCheckpointed)] == [False, True]
    assert world.inputs(RunResumed)[0].first_step_ms == 2100
    await world.look()
    (progress,) = world.telemetry[-1].runs
    assert (progress.run_id, progress.step, progress.metrics) == ("7-1", 12, {"loss": 0.3})
    await world.stop()
    assert await reader.read() == b""
    writer.close()
