"""The probe process: asks NVML and nothing else, so that a hanging driver hangs only this.

Run by `nvml.NvmlProbe` as ``python -P -m node_agent.nvml_probe``. Only this module imports
`pynvml`. What a driver or a GPU does not support is absent (None), never an error; a GPU that does
not answer is told as such and disturbs no other. Ends when its stdin closes.
"""

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

import pynvml

from broker.runtime import die_with_parent
from broker.schemas.node import GpuInfo
from node_agent.core.readings import GpuEvent, GpuReading, ProbedGpu, ProbedInventory
from node_agent.probe_protocol import (
    QUESTIONS,
    Answer,
    AskInventory,
    Event,
    Failed,
    Inventory,
    Sample,
    line_of,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
Handle = Any

EVENT_WAIT_MS = 500
NUMA_MASK_WORDS = 16
GPU_SILENT = frozenset(
    (
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    )
)
NO_EVENTS = frozenset((pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
LIBRARY_BROKEN = frozenset(
    (
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )
)
REMEDIES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 not found: is the driver installed?",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "driver/library version mismatch: the driver was changed, reload it or restart the machine"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
}


def optional(call: Callable[..., T], *arguments: Any) -> T | None:
    """Return what an NVML call says, or None where driver or GPU cannot tell.

    Not supported, not in this library, not permitted, a sensor that fails: all the same here.
    Raises only where the GPU does not answer at all or the library is broken.
    """
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in GPU_SILENT | LIBRARY_BROKEN:
            raise
        return None


def problem_of(error: pynvml.NVMLError) -> str:
    """Return an NVML error in words."""
    return REMEDIES.get(error.value, f"NVML: {error}")


class Probe:
    """NVML opened, with a handle for each GPU that answered then."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handles: dict[str, Handle] = {}

    def inventory(self) -> ProbedInventory:
        """List the GPUs; one that does not answer is named in ``problem`` and left out."""
        found: list[tuple[Handle, GpuInfo]] = []
        problems = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append((handle, _described(handle, index)))
            except pynvml.NVMLError as error:
                if error.value in LIBRARY_BROKEN:
                    raise
                problems.append(f"GPU at index {index} does not answer: {error}")
        self._handles = {gpu.gpu_id: handle for handle, gpu in found}
        return ProbedInventory(
            gpus=tuple(self._probed(gpu, handle) for handle, gpu in found),
            driver_version=optional(pynvml.nvmlSystemGetDriverVersion) or "",
            problem="; ".join(problems),
        )

    def sample(self) -> tuple[GpuReading, ...]:
        """Read every GPU; one that does not answer does not disturb the others."""
        return tuple(self._reading(gpu_id, handle) for gpu_id, handle in self._handles.items())

    def subscribe(self) -> Any:
        """Let the driver keep XID errors from now on; None if it has no events."""
        events = optional(pynvml.nvmlEventSetCreate)
        if events is not None:
            for handle in self._handles.values():
                _register(handle, events)
        return events

    def watch(self, events: Any, tell: Callable[[GpuEvent], None], stop: threading.Event) -> None:
        """Tell each XID error until ``stop``, or until the driver has no more."""
        while not stop.is_set():
            try:
                data = pynvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
            except pynvml.NVMLError as error:
                if error.value in NO_EVENTS | LIBRARY_BROKEN:
                    return
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    stop.wait(EVENT_WAIT_MS / 1000)
                continue
            gpu_id = self._id_of(data.device)
            if gpu_id and data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                tell(GpuEvent(gpu_id=gpu_id, xid=data.eventData))

    def _id_of(self, device: Handle) -> str:
        """Find by handle, not by UUID: a GPU that has just been lost does not tell its UUID."""
        return next(
            (
                gpu_id
                for gpu_id, handle in self._handles.items()
                if _address(handle) == _address(device)
            ),
            "",
        )

    def _probed(self, gpu: GpuInfo, handle: Handle) -> ProbedGpu:
        try:
            mig = optional(pynvml.nvmlDeviceGetMigMode, handle)
            return ProbedGpu(
                gpu=gpu,
                nvlink_remotes=_nvlink_remotes(handle),
                switch_neighbours=self._switch_neighbours(handle),
                is_mig_enabled=bool(mig and mig[0]),
            )
        except pynvml.NVMLError as error:
            if error.value in LIBRARY_BROKEN:
                raise
            return ProbedGpu(gpu=gpu)

    def _switch_neighbours(self, handle: Handle) -> tuple[str, ...]:
        neighbours = []
        for gpu_id, other in self._handles.items():
            if other is handle:
                continue
            level = optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, other)
            if level is not None and level <= pynvml.NVML_TOPOLOGY_SINGLE:
                neighbours.append(gpu_id)
        return tuple(neighbours)

    def _reading(self, gpu_id: str, handle: Handle) -> GpuReading:
        try:
            return _read(gpu_id, handle)
        except pynvml.NVMLError as error:
            if error.value in LIBRARY_BROKEN:
                raise
            return GpuReading(gpu_id=gpu_id, problem=str(error))


def _described(handle: Handle, index: int) -> GpuInfo:
    memory = _memory(handle)
    pci = optional(pynvml.nvmlDeviceGetPciInfo, handle)
    return GpuInfo(
        gpu_id=pynvml.nvmlDeviceGetUUID(handle),
        index=index,
        model=optional(pynvml.nvmlDeviceGetName, handle) or "",
        memory_bytes=0 if memory is None else memory.total,
        pci_bus_id="" if pci is None else pci.busId,
        numa_node=_numa_node(handle),
    )


def _memory(handle: Handle) -> Any:
    """The first version counts memory that the driver reserves as used, so it is second choice."""
    memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return memory or optional(pynvml.nvmlDeviceGetMemoryInfo, handle)


def _numa_node(handle: Handle) -> int | None:
    """The one NUMA node near the GPU; None when there are several or nobody knows."""
    words = optional(
        pynvml.nvmlDeviceGetMemoryAffinity,
        handle,
        NUMA_MASK_WORDS,
        pynvml.NVML_AFFINITY_SCOPE_NODE,
    )
    if words is not None:
        mask = sum(word << (64 * place) for place, word in enumerate(words))
        return mask.bit_length() - 1 if mask.bit_count() == 1 else None
    node = optional(pynvml.nvmlDeviceGetNumaNodeId, handle)
    return node if node is not None and node >= 0 else None


def _nvlink_remotes(handle: Handle) -> tuple[str, ...]:
    remotes = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if optional(pynvml.nvmlDeviceGetNvLinkState, handle, link):
            remote = optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if remote is not None:
                remotes.add(remote.busId)
    return tuple(sorted(remotes))


def _read(gpu_id: str, handle: Handle) -> GpuReading:
    pynvml.nvmlDeviceGetUUID(handle)  # never absent, so it tells whether the GPU answers at all
    utilisation = optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _memory(handle)
    remapped = optional(pynvml.nvmlDeviceGetRemappedRows, handle)
    pages_pending = optional(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    clocks = optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if clocks is None:
        clocks = optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    processes = optional(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return GpuReading(
        gpu_id=gpu_id,
        utilisation_percent=None if utilisation is None else utilisation.gpu,
        memory_used_bytes=None if memory is None else memory.used,
        temperature_celsius=optional(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        power_milliwatts=optional(pynvml.nvmlDeviceGetPowerUsage, handle),
        ecc_uncorrected_errors=optional(
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        is_remap_pending=bool(pages_pending) or bool(remapped and remapped[2]),
        is_remap_failed=bool(remapped and remapped[3]),
        is_thermal_slowdown=bool(clocks & pynvml.nvmlClocksThrottleReasonHwThermalSlowdown),
        is_power_brake=bool(clocks & pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
        pids=tuple(sorted({process.pid for process in processes})),
    )


def _register(handle: Handle, events: Any) -> None:
    """Ask for the XID errors of a GPU; one that refuses is covered by the readings alone."""
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    except pynvml.NVMLError as error:
        logger.warning("no XID events from a GPU: %s", error)


def _address(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class Talk:
    """The probe's side of the conversation; two threads may speak."""

    def __init__(self, questions: BinaryIO, answers: BinaryIO) -> None:
        self._questions = questions
        self._answers = answers
        self._lock = threading.Lock()

    def say(self, answer: Answer) -> None:
        """Send a whole line at once."""
        with self._lock:
            self._answers.write(line_of(answer))
            self._answers.flush()

    def run(self) -> None:
        """Answer until stdin closes or NVML fails as a whole."""
        stop = threading.Event()
        watcher = None
        probe = None
        try:
            for line in self._questions:
                if isinstance(QUESTIONS.decode(line), AskInventory):
                    probe = probe or Probe()
                    inventory = probe.inventory()
                    watcher = watcher or self._started_watcher(probe, stop)
                    self.say(Inventory(inventory))
                elif probe is not None:
                    self.say(Sample(probe.sample()))
        except pynvml.NVMLError as error:
            self.say(Failed(problem_of(error)))
        finally:
            stop.set()
            if watcher is not None:
                watcher.join(2 * EVENT_WAIT_MS / 1000)

    def _started_watcher(self, probe: Probe, stop: threading.Event) -> threading.Thread | None:
        def tell(event: GpuEvent) -> None:
            self.say(Event(event))

        events = probe.subscribe()
        if events is None:
            return None
        watcher = threading.Thread(target=probe.watch, args=(events, tell, stop), daemon=True)
        watcher.start()
        return watcher


def main() -> None:
    """Talk on stdin and stdout; what a library prints to stdout goes to stderr instead."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    Talk(sys.stdin.buffer, answers).run()


if __name__ == "__main__":
    main()
