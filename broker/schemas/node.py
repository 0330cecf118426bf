"""What a node agent says: inventory and health (logged), heartbeat and telemetry (not logged)."""

from enum import StrEnum

import msgspec

from broker.schemas.base import Input, Message


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as found at the agent's start. ``gpu_id`` is its UUID, never an index."""

    gpu_id: str
    index: int
    model: str = ""
    memory_bytes: int = 0
    pci_bus_id: str = ""
    numa_node: int | None = None
    pcie_switch: str = ""
    """GPUs with the same non-empty value share a PCIe switch."""
    nvlink_peers: tuple[str, ...] = ()
    simulated: bool = False


class GpuFaultReason(StrEnum):
    """Why a GPU is out of use; a closed list."""

    LOST = "Lost"
    XID = "Xid"
    ECC = "Ecc"
    THERMAL = "Thermal"
    POWER = "Power"
    HUNG = "Hung"
    DIRTY = "Dirty"
    """Processes of an ended run could not be killed."""


class NodeJoined(Input, frozen=True, kw_only=True, tag="node.joined"):
    """A node offers its GPUs. Sent at each start of an agent; the newest inventory wins.

    No GPU and a non-empty ``problem`` mean that NVML failed. ``host`` is the address tasks of
    other nodes connect to. A changed ``boot_id`` means that the machine restarted: nothing runs.
    """

    node: str
    boot_id: str
    host: str
    gpus: tuple[GpuInfo, ...] = ()
    unhealthy: dict[str, GpuFaultReason] = {}
    problem: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    version: str = ""


class NodeLeft(Input, frozen=True, kw_only=True, tag="node.left"):
    """The agent stops on purpose: offer its GPUs to nobody; what runs there goes on."""

    node: str


class NodeSilent(Input, frozen=True, kw_only=True, tag="node.silent"):
    """The leader heard no heartbeat for a while: runs there become UNKNOWN, nothing starts."""

    node: str
    silent_ms: int


class NodeHeard(Input, frozen=True, kw_only=True, tag="node.heard"):
    """A silent or lost node is heard again."""

    node: str


class NodeLost(Input, frozen=True, kw_only=True, tag="node.lost"):
    """A node was silent past its launcher's lease plus a margin: its runs are over."""

    node: str
    silent_ms: int


class GpuHealthChanged(Input, frozen=True, kw_only=True, tag="node.gpu_health_changed"):
    """One GPU went out of use, or came back (``reason`` is None)."""

    node: str
    gpu_id: str
    reason: GpuFaultReason | None
    detail: str = ""


class NodeCordonRequested(Input, frozen=True, kw_only=True, tag="node.cordon_requested"):
    """Start nothing new on a node; what runs there goes on."""

    node: str
    user: str = ""
    note: str = ""


class NodeUncordonRequested(Input, frozen=True, kw_only=True, tag="node.uncordon_requested"):
    """Use a cordoned node again."""

    node: str
    user: str = ""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """A reading of one GPU; None where the driver does not tell."""

    gpu_id: str
    utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    ecc_uncorrected_errors: int | None = None
    pids: tuple[int, ...] = ()


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The newest a run's tasks said on the job socket."""

    run_id: str
    step: int | None = None
    total_steps: int | None = None
    metrics: dict[str, float] = {}
    at_ms: int = 0


class Heartbeat(Message, frozen=True, kw_only=True, tag="node.heartbeat"):
    """One small message per node and period, on core NATS. The latest wins."""

    node: str
    boot_id: str
    sequence: int
    at_ms: int


class Telemetry(Message, frozen=True, kw_only=True, tag="node.telemetry"):
    """Samples and progress of one node: last value per node, never in the log."""

    node: str
    at_ms: int
    gpus: tuple[GpuSample, ...] = ()
    runs: tuple[RunProgress, ...] = ()
    cpu_percent: float = 0.0
    memory_used_bytes: int = 0
    stale_since_ms: int | None = None
    """NVML stopped answering at this time; ``gpus`` is empty since."""
