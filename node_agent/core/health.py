"""Which GPUs are fit for work: verdicts from readings and XID errors, for each GPU on its own.

| fault | raised by | ends when |
| --- | --- | --- |
| Lost | XID 79; no answer, or gone, `lost_readings` times in a row | restart + pass |
| Ecc | XID 48, 64, 94, 95; uncorrected errors; a remap pending or failed | restart + pass |
| Xid | any other critical XID that no application causes | restart + pass |
| Thermal, Power | the hardware cuts the clocks, `slow_readings` times in a row | it heals |
| Hung | the probe gave no answer for too long: all GPUs | it heals |

*It heals*: `passing_readings` good readings in a row. *Restart + pass*: such readings after the
boot id has changed since the fault was last seen, because these faults need a reset and may look
well until then; or an operator clears the flag. Flags are kept by the shell, so that restarting
the agent never clears one. A lasting fault takes the place of a healing one; otherwise the first
fault stands.
"""

from collections.abc import Iterable, Mapping

import msgspec

from broker.schemas.node import GpuFaultReason
from node_agent.core.readings import GpuEvent, GpuReading

HEALING = frozenset((GpuFaultReason.THERMAL, GpuFaultReason.POWER, GpuFaultReason.HUNG))
XID_VERDICTS: dict[int, GpuFaultReason | None] = {
    13: None,  # exception in a kernel of the application
    31: None,  # page fault of the application
    43: None,  # the application's channel stopped
    45: None,  # clean-up after an earlier error of the application
    63: None,  # a row was retired: the reading tells whether a reset is due
    68: None,  # video decoder exception
    69: None,  # class error of the application
    92: None,  # many corrected errors
    109: None,  # context switch timed out
    48: GpuFaultReason.ECC,
    64: GpuFaultReason.ECC,
    94: GpuFaultReason.ECC,
    95: GpuFaultReason.ECC,
    79: GpuFaultReason.LOST,
}
XID_TEXTS = {
    48: "uncorrected memory error",
    64: "a memory row could not be retired",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's system processor timed out",
    120: "the GPU's system processor failed",
}


class HealthRules(msgspec.Struct, frozen=True, kw_only=True):
    """How many readings in a row make or end a fault."""

    lost_readings: int = 2
    slow_readings: int = 3
    passing_readings: int = 3


DEFAULT_RULES = HealthRules()


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a GPU is out of use, since when, and in which boot of the machine it was last seen."""

    reason: GpuFaultReason
    detail: str
    boot_id: str
    since_ms: int


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU went out of use, or came back (``fault`` is None)."""

    gpu_id: str
    fault: Fault | None


class _Streak(msgspec.Struct):
    """How often the latest finding came in a row."""

    finding: GpuFaultReason | None = None
    count: int = 0


class HealthBook:
    """The health of the node's GPUs. ``gpu_ids`` are watched; ``faults`` are the flags kept."""

    def __init__(
        self,
        gpu_ids: Iterable[str],
        faults: Mapping[str, Fault],
        *,
        boot_id: str,
        rules: HealthRules = DEFAULT_RULES,
    ) -> None:
        self._streaks = {gpu_id: _Streak() for gpu_id in gpu_ids}
        self._faults = dict(faults)
        self._boot_id = boot_id
        self._rules = rules

    @property
    def faults(self) -> dict[str, Fault]:
        """All standing flags, also of GPUs that are not watched now."""
        return dict(self._faults)

    def observe(self, readings: Iterable[GpuReading], now_ms: int) -> list[Change]:
        """Judge one look at all GPUs; a watched GPU without a reading does not answer."""
        by_id = {reading.gpu_id: reading for reading in readings}
        changes = []
        for gpu_id, streak in self._streaks.items():
            missing = GpuReading(gpu_id=gpu_id, problem="the driver no longer lists it")
            finding, detail = finding_of(by_id.get(gpu_id, missing))
            if finding is not streak.finding:
                streak.finding, streak.count = finding, 0
            streak.count += 1
            if finding is None:
                changes += self._passed(gpu_id, streak.count)
            elif streak.count >= self._needed(finding):
                changes += self._raise(gpu_id, finding, detail, now_ms)
        return changes

    def note_event(self, event: GpuEvent, now_ms: int) -> list[Change]:
        """Judge an XID error; those that an application causes change nothing."""
        reason = XID_VERDICTS.get(event.xid, GpuFaultReason.XID)
        if reason is None or event.gpu_id not in self._streaks:
            return []
        text = XID_TEXTS.get(event.xid, "see the driver's list of XID errors")
        return self._raise(event.gpu_id, reason, f"XID {event.xid}: {text}", now_ms)

    def note_hung(self, detail: str, now_ms: int) -> list[Change]:
        """The probe has not answered for too long: nothing is known of any GPU."""
        changes = []
        for gpu_id, streak in self._streaks.items():
            streak.finding, streak.count = GpuFaultReason.HUNG, 0
            changes += self._raise(gpu_id, GpuFaultReason.HUNG, detail, now_ms)
        return changes

    def _needed(self, finding: GpuFaultReason) -> int:
        if finding is GpuFaultReason.LOST:
            return self._rules.lost_readings
        return self._rules.slow_readings if finding in HEALING else 1

    def _raise(self, gpu_id: str, reason: GpuFaultReason, detail: str, now_ms: int) -> list[Change]:
        standing = self._faults.get(gpu_id)
        if standing and standing.reason not in HEALING and reason not in HEALING:
            self._faults[gpu_id] = msgspec.structs.replace(standing, boot_id=self._boot_id)
        if standing and (standing.reason not in HEALING or reason in HEALING):
            return []
        fault = Fault(reason=reason, detail=detail, boot_id=self._boot_id, since_ms=now_ms)
        self._faults[gpu_id] = fault
        return [Change(gpu_id=gpu_id, fault=fault)]

    def _passed(self, gpu_id: str, count: int) -> list[Change]:
        standing = self._faults.get(gpu_id)
        if standing is None or count < self._rules.passing_readings:
            return []
        if standing.reason not in HEALING and standing.boot_id == self._boot_id:
            return []
        del self._faults[gpu_id]
        return [Change(gpu_id=gpu_id, fault=None)]


def finding_of(reading: GpuReading) -> tuple[GpuFaultReason | None, str]:
    """Return what one reading alone tells, worst first; (None, "") if it is fine."""
    errors = reading.ecc_uncorrected_errors
    findings = (
        (reading.problem, GpuFaultReason.LOST, reading.problem),
        (reading.is_remap_failed, GpuFaultReason.ECC, "a memory row could not be retired"),
        (reading.is_remap_pending, GpuFaultReason.ECC, "retired memory rows wait for a reset"),
        (errors, GpuFaultReason.ECC, f"{errors} uncorrected memory errors"),
        (reading.is_thermal_slowdown, GpuFaultReason.THERMAL, _heat(reading)),
        (reading.is_power_brake, GpuFaultReason.POWER, "slowed down by the power supply"),
    )
    return next(((reason, detail) for applies, reason, detail in findings if applies), (None, ""))


def _heat(reading: GpuReading) -> str:
    celsius = reading.temperature_celsius
    return "slowed down by heat" + ("" if celsius is None else f" at {celsius} degrees Celsius")
