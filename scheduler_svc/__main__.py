"""``python -P -m scheduler_svc``: reads flags and wires the service to the real bus and clock."""

import argparse
import asyncio
import os
import socket
from pathlib import Path

from broker import nats_bus, topology
from broker.clock import SystemClock
from broker.runtime import run_service
from broker.scrape import served
from scheduler_svc.config import ConfigError, Options, SchedulerConfig, parse_options, read_options
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.service import SchedulerService

HELP = {
    "policy": "las (least attained service) or fifo",
    "queue_limits": "GPU-seconds, ascending, joined by commas: 3600,7200",
    "queue_order": "order within a queue: running_first or start_time",
    "promote_knob": "back to the first queue after waiting this times the running time; or off",
    "promote_floor": "least waiting time before a promotion, for example 4h",
    "pack_limit": "jobs of higher skew are consolidated, 0 to 1",
    "consolidate": "require or prefer the fewest nodes",
    "preempt_exempt": "least running time before a preemption, for example 60s",
    "preempt_exempt_costs": "the same in multiples of the job's last preemption cost",
    "launch_limit": "a gang not up whole after this long is aborted",
    "restart_backoff": "first wait after a failure; doubles, at most 32 times this",
}


def parser() -> argparse.ArgumentParser:
    """Return the command line of the service."""
    line = argparse.ArgumentParser(prog="scheduler_svc", description="The Tiresias scheduler.")
    nats_url = os.environ.get("TIRESIAS_NATS", "nats://127.0.0.1:4222")
    line.add_argument("--nats", default=nats_url, metavar="URL", help="default: $TIRESIAS_NATS")
    line.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    line.add_argument("--instance", default=f"{socket.gethostname()}-{os.getpid()}")
    line.add_argument("--config", type=Path, metavar="FILE", help="options in TOML or JSON")
    line.add_argument("--log-level", default="INFO")
    line.add_argument("--metrics-port", type=int, default=0, metavar="N", help="loopback; 0 is off")
    for name in ("suspect_after_ms", "lost_after_ms", "snapshot_every_inputs"):
        default = getattr(SchedulerConfig(nats_url="", state_dir=Path()), name)
        line.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N")
    options = line.add_argument_group("scheduling options (also keys of the file)")
    for name in Options.__struct_fields__:
        options.add_argument(f"--{name.replace('_', '-')}", help=HELP[name])
    return line


def config_of(flags: argparse.Namespace) -> SchedulerConfig:
    """Return the configuration of parsed flags; raises `ConfigError`."""
    options = Options() if flags.config is None else read_options(flags.config)
    said = {name: getattr(flags, name) for name in Options.__struct_fields__}
    said = {name: text for name, text in said.items() if text is not None}
    return SchedulerConfig(
        nats_url=flags.nats,
        state_dir=flags.state_dir,
        instance=flags.instance,
        options=parse_options(said).over(options),
        suspect_after_ms=flags.suspect_after_ms,
        lost_after_ms=flags.lost_after_ms,
        snapshot_every_inputs=flags.snapshot_every_inputs,
        metrics_port=flags.metrics_port,
    )


async def serve(config: SchedulerConfig, stop: asyncio.Event) -> None:
    """Run the scheduler on the real bus until ``stop`` is set."""
    clock = SystemClock()
    metrics = SchedulerMetrics(clock)
    with served(metrics.registry, config.metrics_port):
        bus = await nats_bus.connect(config.nats_url, name=f"scheduler {config.instance}")
        try:
            await topology.ensure(bus)
            await SchedulerService(bus, clock, config, metrics).run(stop)
        finally:
            await bus.close()


def main() -> None:
    """Run the scheduler service; ends with 2 on a wrong command line or file."""
    line = parser()
    flags = line.parse_args()
    try:
        config = config_of(flags)
    except ConfigError as error:
        line.error(str(error))
    run_service(lambda stop: serve(config, stop), log_level=flags.log_level)


if __name__ == "__main__":
    main()
