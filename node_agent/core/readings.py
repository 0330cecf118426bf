"""What a probe of the GPUs yields: plain facts, no verdicts. None means "the driver does not tell".

The probe process fills these structs, `inventory` and `health` judge them.
"""

import msgspec

from broker.schemas.node import GpuInfo


class ProbedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as enumerated, with its raw neighbourhood; ``gpu`` has no peers and no switch yet."""

    gpu: GpuInfo
    nvlink_remotes: tuple[str, ...] = ()
    """PCI bus ids at the far end of its active NVLinks: GPUs or NVSwitches."""
    switch_neighbours: tuple[str, ...] = ()
    """Ids of the GPUs reached through one PCIe switch."""
    is_mig_enabled: bool = False


class ProbedInventory(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs that answered. ``problem`` tells of those that did not."""

    gpus: tuple[ProbedGpu, ...] = ()
    driver_version: str = ""
    problem: str = ""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one GPU. ``problem`` says why it did not answer; then nothing else is set."""

    gpu_id: str
    problem: str = ""
    utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    ecc_uncorrected_errors: int | None = None
    """Since the driver was loaded or the GPU was reset."""
    is_remap_pending: bool = False
    """Memory rows (or pages) were retired and wait for a reset."""
    is_remap_failed: bool = False
    is_thermal_slowdown: bool = False
    """The hardware, not the driver, cut the clocks because of heat."""
    is_power_brake: bool = False
    """The power supply asked the board to slow down."""
    pids: tuple[int, ...] = ()


class GpuEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An XID error that the driver reported."""

    gpu_id: str
    xid: int
