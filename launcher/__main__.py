"""``python -P -m launcher``: options and wiring."""

import argparse
import asyncio
import fcntl
import functools
import os
import socket
from pathlib import Path

from broker.clock import SystemClock
from broker.errors import TiresiasError
from broker.ids import checked_token, to_token
from broker.nats_bus import connect
from broker.runtime import run_service
from broker.scrape import served
from launcher.config import LauncherConfig
from launcher.metrics import LauncherMetrics
from launcher.service import serve

_NATS = "nats://127.0.0.1:4222"
_LAST_PORT = 65_535


class LauncherBusyError(TiresiasError):
    """Two launchers on one state folder would each start the same runs."""

    def __init__(self, state_dir: Path, owner: str) -> None:
        super().__init__(
            f"another launcher (process {owner or 'unknown'}) already uses state directory "
            f"{str(state_dir)!r}; stop it, or give this one its own --state-dir"
        )


def main() -> None:
    """Run a launcher until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    run_service(functools.partial(_main, options), log_level=options.log_level)


async def _main(options: argparse.Namespace, stop: asyncio.Event) -> None:
    config = _config(options)
    lock = _lock(config.state_dir)
    try:
        metrics = LauncherMetrics()
        with served(metrics.registry, options.metrics_port):
            bus = await connect(options.nats, name=f"launcher-{config.node}")
            try:
                await serve(config, bus, SystemClock(), stop, metrics)
            finally:
                await bus.close()
    finally:
        os.close(lock)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launcher", description=__doc__)
    add = parser.add_argument
    add("--nats", metavar="URL", default=os.environ.get("TIRESIAS_NATS", _NATS))
    add("--node", metavar="NAME", default=to_token(socket.gethostname()))
    add("--state-dir", metavar="DIR", type=Path, required=True)
    add("--run-dir", metavar="DIR", type=Path, required=True, help="shared with the node's agent")
    add("--checkpoint-root", metavar="DIR", type=Path, required=True)
    add("--ports", metavar="FIRST-LAST", type=_ports, default=(20_000, 29_999))
    add("--on-exit", choices=("leave", "stop"), default="leave", help="what to do with the runs")
    add("--lease-ms", metavar="N", type=int, default=30_000, help="stop all runs when cut off")
    add("--log-level", metavar="LEVEL", default="INFO")
    add("--metrics-port", metavar="N", type=int, default=0, help="0: no metrics")
    return parser


def _ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) <= _LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of ports such as 20000-29999")
    return int(first), int(last)


def _config(options: argparse.Namespace) -> LauncherConfig:
    first_port, last_port = options.ports
    return LauncherConfig(
        node=checked_token("node", options.node),
        state_dir=options.state_dir.resolve(),
        run_dir=options.run_dir.resolve(),
        checkpoint_root=options.checkpoint_root.resolve(),
        first_port=first_port,
        last_port=last_port,
        lease_ms=options.lease_ms,
        on_exit=options.on_exit,
    )


def _lock(state_dir: Path) -> int:
    """Hold the state folder for this process alone."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(state_dir / "launcher.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 32).decode(errors="replace").strip()
        os.close(lock)
        raise LauncherBusyError(state_dir, owner) from None
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


if __name__ == "__main__":
    main()
