"""``python -P -m node_agent``: reads flags and wires the agent to the real bus, clock and GPUs."""

import argparse
import asyncio
import os
import socket
from importlib import metadata
from pathlib import Path

import psutil

from broker import nats_bus
from broker.clock import Clock, SystemClock
from broker.ids import InvalidIdError, checked_token, to_token
from broker.runtime import run_service
from broker.scrape import served
from node_agent.config import AgentConfig
from node_agent.core.inventory import Host
from node_agent.gpu_source import GpuSource
from node_agent.metrics import AgentMetrics
from node_agent.nvml import NvmlProbe, ProbeTimes
from node_agent.service import NodeAgent
from node_agent.simulated_gpus import SimulatedGpus

MAX_SIMULATED_GPUS = 1024
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def parser() -> argparse.ArgumentParser:
    """Return the command line of the agent."""
    line = argparse.ArgumentParser(prog="node_agent", description="The agent of one GPU node.")
    nats_url = os.environ.get("TIRESIAS_NATS", "nats://127.0.0.1:4222")
    line.add_argument("--nats", default=nats_url, metavar="URL", help="default: $TIRESIAS_NATS")
    line.add_argument("--node", default=to_token(socket.gethostname()), metavar="NAME")
    line.add_argument(
        "--host", default="127.0.0.1", metavar="ADDR", help="where tasks of other nodes connect to"
    )
    line.add_argument(
        "--gpus", type=_gpu_count, metavar="N", help="declare simulated GPUs; default: ask NVML"
    )
    line.add_argument(
        "--run-dir", type=Path, required=True, metavar="DIR", help="shared with the launcher"
    )
    line.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    line.add_argument(
        "--clear-fault",
        action="append",
        default=[],
        metavar="UUID",
        help="take away the flag of a repaired GPU at this start; may be repeated",
    )
    line.add_argument("--nvml-deadline-ms", type=int, default=5_000, metavar="N")
    line.add_argument("--log-level", default="INFO")
    line.add_argument("--metrics-port", type=int, default=0, metavar="N", help="loopback; 0 is off")
    return line


def config_of(flags: argparse.Namespace) -> AgentConfig:
    """Return the configuration of parsed flags; raises `InvalidIdError` for a bad node name."""
    is_simulated = flags.gpus is not None
    host = Host(
        node=checked_token("node", flags.node),
        boot_id=BOOT_ID.read_text(encoding="ascii").strip(),
        address=flags.host,
        cpus=os.cpu_count() or 0,
        memory_bytes=psutil.virtual_memory().total,
        version=_version(),
    )
    return AgentConfig(
        host=host,
        run_dir=flags.run_dir,
        state_file=flags.state_dir / ("simulated_gpus.json" if is_simulated else "gpus.json"),
        device_mask=None if is_simulated else os.environ.get("CUDA_VISIBLE_DEVICES"),
        cleared_faults=tuple(flags.clear_fault),
    )


def source_of(flags: argparse.Namespace, clock: Clock) -> GpuSource:
    """Return declared GPUs if there are any, else those of NVML."""
    if flags.gpus is not None:
        return SimulatedGpus(flags.node, flags.gpus)
    return NvmlProbe(clock, ProbeTimes(answer_ms=flags.nvml_deadline_ms))


async def serve(flags: argparse.Namespace, config: AgentConfig, stop: asyncio.Event) -> None:
    """Run the agent on the real bus until ``stop`` is set."""
    clock = SystemClock()
    metrics = AgentMetrics(config.host.node)
    with served(metrics.registry, flags.metrics_port):
        bus = await nats_bus.connect(flags.nats, name=f"agent {config.host.node}")
        try:
            await NodeAgent(bus, clock, source_of(flags, clock), config, metrics).run(stop)
        finally:
            await bus.close()


def main() -> None:
    """Run the agent; ends with 2 on a wrong command line."""
    line = parser()
    flags = line.parse_args()
    try:
        config = config_of(flags)
    except InvalidIdError as error:
        line.error(str(error))
    run_service(lambda stop: serve(flags, config, stop), log_level=flags.log_level)


def _gpu_count(text: str) -> int:
    count = int(text)
    if not 0 <= count <= MAX_SIMULATED_GPUS:
        raise argparse.ArgumentTypeError(f"{count} is not between 0 and {MAX_SIMULATED_GPUS}")
    return count


def _version() -> str:
    try:
        return metadata.version("tiresias-mesh")
    except metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main()
