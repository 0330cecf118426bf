"""Verdicts on GPUs: what takes one out of use, what brings it back, and what does neither."""

import pytest

from broker.schemas.node import GpuFaultReason as Reason
from node_agent.core.health import Fault, HealthBook, finding_of
from node_agent.core.readings import GpuEvent, GpuReading

IDS = ("g0", "g1", "g2", "g3")
FINE = tuple(GpuReading(gpu_id=gpu_id) for gpu_id in IDS)


def book(faults=None, boot_id="boot-1") -> HealthBook:
    return HealthBook(IDS, faults or {}, boot_id=boot_id)


def but(**reading) -> tuple[GpuReading, ...]:
    """All fine except g2."""
    return tuple(GpuReading(gpu_id="g2", **reading) if r.gpu_id == "g2" else r for r in FINE)


def told(changes) -> list[tuple[str, Reason | None]]:
    return [(change.gpu_id, change.fault and change.fault.reason) for change in changes]


def observe(subject: HealthBook, readings, times: int):
    return [told(subject.observe(readings, now_ms=n)) for n in range(times)]


def test_one_lost_gpu_takes_only_itself_out() -> None:
    subject = book()
    assert observe(subject, but(problem="GPU is lost"), 4) == [[], [("g2", Reason.LOST)], [], []]
    assert list(subject.faults) == ["g2"]
    assert subject.faults["g2"].detail == "GPU is lost"


def test_a_gpu_that_is_no_longer_listed_is_lost() -> None:
    subject = book()
    assert observe(subject, FINE[:3], 2)[-1] == [("g3", Reason.LOST)]


def test_a_single_bad_answer_is_not_yet_a_loss() -> None:
    subject = book()
    for readings in (but(problem="x"), FINE, but(problem="x"), FINE):
        assert subject.observe(readings, 0) == []


@pytest.mark.parametrize(
    ("reading", "reason", "words"),
    [
        ({"is_remap_pending": True}, Reason.ECC, "wait for a reset"),
        ({"is_remap_failed": True}, Reason.ECC, "could not be retired"),
        ({"ecc_uncorrected_errors": 2}, Reason.ECC, "2 uncorrected"),
        ({"problem": "x", "ecc_uncorrected_errors": 2}, Reason.LOST, "x"),
        ({"is_thermal_slowdown": True, "temperature_celsius": 95}, Reason.THERMAL, "at 95 degrees"),
        ({"is_thermal_slowdown": True}, Reason.THERMAL, "by heat"),
        ({"is_power_brake": True}, Reason.POWER, "power supply"),
    ],
)
def test_a_reading_has_one_finding_the_worst(reading, reason, words) -> None:
    finding, detail = finding_of(GpuReading(gpu_id="g", **reading))
    assert finding is reason
    assert words in detail


def test_memory_errors_take_a_gpu_out_at_once() -> None:
    assert observe(book(), but(ecc_uncorrected_errors=1), 1) == [[("g2", Reason.ECC)]]


def test_no_uncorrected_errors_is_fine() -> None:
    assert finding_of(GpuReading(gpu_id="g", ecc_uncorrected_errors=0)) == (None, "")


def test_heat_must_last_and_heals_after_passing_readings() -> None:
    subject = book()
    hot = but(is_thermal_slowdown=True)
    assert observe(subject, hot, 3) == [[], [], [("g2", Reason.THERMAL)]]
    assert observe(subject, FINE, 2) == [[], []]
    assert observe(subject, hot, 1) == [[]]
    assert observe(subject, FINE, 3) == [[], [], [("g2", None)]]
    assert subject.faults == {}


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_faults_of_the_application_leave_the_gpu_in(xid) -> None:
    assert book().note_event(GpuEvent(gpu_id="g1", xid=xid), 0) == []


@pytest.mark.parametrize(
    ("xid", "reason"),
    [
        (48, Reason.ECC),
        (94, Reason.ECC),
        (95, Reason.ECC),
        (79, Reason.LOST),
        (119, Reason.XID),
        (120, Reason.XID),
        (999, Reason.XID),
    ],
)
def test_a_critical_xid_takes_the_gpu_out_at_once(xid, reason) -> None:
    (change,) = book().note_event(GpuEvent(gpu_id="g1", xid=xid), 5)
    assert (change.gpu_id, change.fault.reason, change.fault.since_ms) == ("g1", reason, 5)
    assert f"XID {xid}" in change.fault.detail


def test_an_event_of_a_gpu_outside_the_mask_is_ignored() -> None:
    assert book().note_event(GpuEvent(gpu_id="other", xid=79), 0) == []


def test_hung_takes_all_out_once_and_heals() -> None:
    subject = book()
    everyone = [(gpu_id, Reason.HUNG) for gpu_id in IDS]
    assert told(subject.note_hung("no answer for 30 s", 1)) == everyone
    assert subject.note_hung("no answer for 40 s", 2) == []
    assert observe(subject, FINE, 3)[-1] == [(gpu_id, None) for gpu_id in IDS]


def test_a_lasting_fault_replaces_a_healing_one_and_not_the_reverse() -> None:
    subject = book()
    subject.note_hung("x", 0)
    assert told(subject.note_event(GpuEvent(gpu_id="g1", xid=79), 0)) == [("g1", Reason.LOST)]
    assert subject.note_event(GpuEvent(gpu_id="g1", xid=48), 0) == []
    assert subject.note_hung("x", 0) == []
    assert subject.faults["g1"].reason is Reason.LOST


@pytest.mark.parametrize("reason", [Reason.LOST, Reason.XID, Reason.ECC])
def test_a_lasting_fault_stays_until_a_restart_of_the_machine_and_a_pass(reason) -> None:
    kept = {"g1": Fault(reason=reason, detail="d", boot_id="boot-1", since_ms=0)}
    assert observe(book(kept), FINE, 5) == [[]] * 5
    assert observe(book(kept, "boot-2"), FINE, 3) == [[], [], [("g1", None)]]


def test_a_fault_seen_again_after_the_restart_does_not_clear_in_that_boot() -> None:
    kept = {"g2": Fault(reason=Reason.LOST, detail="d", boot_id="boot-1", since_ms=0)}
    subject = book(kept, "boot-2")
    assert observe(subject, but(problem="GPU is lost"), 2) == [[], []]
    assert subject.faults["g2"].boot_id == "boot-2"
    assert observe(subject, FINE, 5) == [[]] * 5


def test_a_healing_flag_outlives_the_agent_until_probes_pass() -> None:
    kept = {"g1": Fault(reason=Reason.THERMAL, detail="d", boot_id="boot-1", since_ms=0)}
    subject = book(kept)
    assert list(subject.faults) == ["g1"]
    assert observe(subject, FINE, 3)[-1] == [("g1", None)]


def test_flags_of_gpus_that_are_not_watched_are_kept() -> None:
    kept = {"other": Fault(reason=Reason.LOST, detail="d", boot_id="boot-1", since_ms=0)}
    subject = book(kept, "boot-2")
    observe(subject, FINE, 5)
    assert subject.faults == kept
