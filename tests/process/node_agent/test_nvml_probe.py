"""The probe process under the real NVML bindings: struct layouts, absent functions, hangs."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from broker.clock import SystemClock
from node_agent.core import inventory
from node_agent.gpu_source import ProbeError
from node_agent.nvml import NvmlProbe, ProbeTimes

pytestmark = pytest.mark.process

LOST, RESET_REQUIRED, MISMATCH, NO_PERMISSION, UNKNOWN = 15, 16, 18, 4, 999
PATIENT = ProbeTimes(stop_step_ms=200, backoff_ms=1, max_backoff_ms=20)
HASTY = ProbeTimes(answer_ms=300, stop_step_ms=200, backoff_ms=1, max_backoff_ms=20)
IDS = [f"GPU-{index:08x}-1111-2222-3333-444444444444" for index in range(4)]


@pytest.fixture
async def probe():
    made = NvmlProbe(SystemClock(), PATIENT)
    yield made
    await made.close()


@pytest.fixture
async def hasty_probe():
    """Has a short deadline, so that a busy machine may need more than one try."""
    made = NvmlProbe(SystemClock(), HASTY)
    yield made
    await made.close()


async def recovered(probe: NvmlProbe):
    """Sample until it works; bounded."""
    for _ in range(500):
        try:
            return await probe.sample()
        except ProbeError:
            await asyncio.sleep(0.01)
    raise AssertionError("the probe never came back")


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_the_inventory_has_identity_memory_and_neighbourhood(nvml, probe) -> None:
    nvml.set(gpu0_switch=0, gpu1_switch=0, gpu1_numa=1, gpu3_memory=150_000_000_000)
    nvml.link(2, 0, "00000000:A3:00.0")
    nvml.link(2, 5, "00000000:A3:00.0")
    found = await probe.inventory()
    assert found.driver_version == "580.1"
    gpus = inventory.described(found).gpus
    assert [gpu.gpu_id for gpu in gpus] == IDS
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert gpus[3].model == "Fake H200"
    assert gpus[3].memory_bytes == 150_000_000_000
    assert gpus[3].pci_bus_id == "00000000:A3:00.0"
    assert [gpu.numa_node for gpu in gpus] == [None, 1, None, None]
    assert gpus[0].pcie_switch == gpus[1].pcie_switch != ""
    assert gpus[2].pcie_switch == gpus[3].pcie_switch == ""
    assert gpus[2].nvlink_peers == (IDS[3],)


async def test_a_gpu_in_mig_mode_is_found_and_not_offered(nvml, probe) -> None:
    nvml.set(gpu0_mig=1, gpu1_mig=0)
    offer = inventory.described(await probe.inventory())
    assert [gpu.gpu_id for gpu in offer.gpus] == IDS[1:]
    assert "MIG" in offer.problem


async def test_a_sample_has_every_number_and_all_processes(nvml, probe) -> None:
    nvml.set(
        gpu1_utilisation=87, gpu1_used=4096, gpu1_temperature=66, gpu1_power=350_000,
        gpu1_pids="812,44,1301",
    )  # fmt: skip
    reading = (await probe.sample())[1]
    assert reading.gpu_id == IDS[1]
    assert reading.utilisation_percent == 87
    assert reading.memory_used_bytes == 4096
    assert reading.temperature_celsius == 66
    assert reading.power_milliwatts == 350_000
    assert reading.ecc_uncorrected_errors == 0
    assert reading.pids == (44, 812, 1301)


async def test_what_takes_a_gpu_out_is_read(nvml, probe) -> None:
    nvml.set(gpu0_ecc=2, gpu1_remap_pending=1, gpu2_remap_failed=1, gpu3_clocks=0x40 | 0x80)
    readings = await probe.sample()
    assert readings[0].ecc_uncorrected_errors == 2
    assert (readings[1].is_remap_pending, readings[1].is_remap_failed) == (True, False)
    assert readings[2].is_remap_failed
    assert readings[3].is_thermal_slowdown
    assert readings[3].is_power_brake
    assert not readings[0].is_thermal_slowdown


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN])
async def test_a_refused_or_failing_sensor_is_absent(nvml, probe, code) -> None:
    nvml.fail("nvmlDeviceGetTemperature", code)
    nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", code)
    reading = (await probe.sample())[0]
    assert (reading.problem, reading.temperature_celsius, reading.pids) == ("", None, ())
    assert reading.power_milliwatts == 70_000


async def test_an_old_driver_lacks_functions_and_still_serves(
    nvml, probe, old_library, monkeypatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_library))
    nvml.set(gpu0_switch=0, gpu1_switch=0)
    gpus = inventory.described(await probe.inventory()).gpus
    assert gpus[0].memory_bytes == 1_000_000
    assert gpus[0].pcie_switch == gpus[1].pcie_switch != ""
    assert (gpus[0].numa_node, gpus[0].nvlink_peers) == (None, ())
    reading = (await probe.sample())[0]
    assert reading.memory_used_bytes == 1_500
    assert not reading.is_remap_pending
    nvml.xid(0, 79)
    await probe.sample()
    assert probe.take_events() == []


@pytest.mark.parametrize(
    ("code", "words"), [(LOST, "GPU is lost"), (RESET_REQUIRED, "requires restart")]
)
async def test_a_silent_gpu_disturbs_no_other(nvml, probe, code, words) -> None:
    await probe.inventory()
    nvml.set(**{"gpu2_error.nvmlDeviceGetUtilizationRates": code})
    readings = await probe.sample()
    assert [reading.problem == "" for reading in readings] == [True, True, False, True]
    assert words in readings[2].problem
    assert readings[2].temperature_celsius is None


async def test_a_gpu_lost_before_the_start_is_named_and_keeps_its_index(nvml, probe) -> None:
    nvml.set(gpu2_lost=1)
    found = await probe.inventory()
    assert [probed.gpu.index for probed in found.gpus] == [0, 1, 3]
    assert "index 2" in found.problem
    assert "lost" in found.problem


async def test_xid_errors_arrive_also_from_a_lost_gpu_and_old_ones_do_not(nvml, probe) -> None:
    nvml.xid(0, 48)
    await probe.inventory()
    nvml.set(gpu2_lost=1)
    nvml.xid(2, 79)
    events = []
    for _ in range(300):
        await probe.sample()
        events += probe.take_events()
        if events:
            break
        await asyncio.sleep(0.01)
    assert [(event.gpu_id, event.xid) for event in events] == [(IDS[2], 79)]


@pytest.mark.parametrize("hang", [1, 2], ids=["dies of SIGTERM", "dies of SIGKILL only"])
async def test_a_hang_meets_its_deadline_and_a_new_probe_takes_over(
    nvml, hasty_probe, hang
) -> None:
    await recovered(hasty_probe)
    child, restarts = hasty_probe._child, hasty_probe.restarts
    nvml.set(hang=hang)
    before = time.monotonic()
    with pytest.raises(ProbeError, match="did not answer within 300 ms"):
        await hasty_probe.sample()
    assert time.monotonic() - before < 5
    with pytest.raises(ProbeError, match="did not answer within 300 ms"):
        await hasty_probe.sample()
    await asyncio.wait([hasty_probe._retiring])
    assert child.returncode == -(signal.SIGTERM if hang == 1 else signal.SIGKILL)
    assert not is_alive(child.pid)
    nvml.set(hang=0)
    assert len(await recovered(hasty_probe)) == 4
    assert hasty_probe.restarts > restarts


async def test_a_killed_probe_is_replaced(nvml, probe) -> None:
    await probe.sample()
    os.kill(probe._child.pid, signal.SIGKILL)
    with pytest.raises(ProbeError, match="ended without an answer"):
        await probe.sample()
    assert len(await recovered(probe)) == 4


async def test_restarts_wait_longer_each_time_up_to_a_bound(nvml) -> None:
    nvml.fail("nvmlInitWithFlags", MISMATCH)
    probe = NvmlProbe(SystemClock(), ProbeTimes(backoff_ms=60_000, max_backoff_ms=60_000))
    for _ in range(50):
        with pytest.raises(ProbeError, match="version mismatch"):
            await probe.inventory()
    assert probe.restarts == 0
    await probe.close()


async def test_a_driver_changed_under_a_running_probe_needs_and_gets_a_new_one(nvml, probe) -> None:
    await probe.sample()
    nvml.fail("nvmlDeviceGetUUID", MISMATCH)
    with pytest.raises(ProbeError, match="driver was changed"):
        await probe.sample()
    nvml.fail("nvmlDeviceGetUUID", None)
    assert len(await recovered(probe)) == 4


async def test_without_a_library_the_reason_says_so(probe, tmp_path, monkeypatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(ProbeError, match=r"libnvidia-ml\.so\.1 not found"):
        await probe.inventory()


async def test_closing_leaves_no_process_behind(nvml) -> None:
    probe = NvmlProbe(SystemClock(), ProbeTimes())
    await probe.sample()
    child = probe._child
    await probe.close()
    assert child.returncode == 0
    assert not is_alive(child.pid)
