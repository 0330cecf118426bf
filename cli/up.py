"""`tiresias up`: a whole cluster on this machine, in the foreground."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli import address, output
from cli.address import AddressFile
from cli.exit_codes import CommandError, ExitCode
from cli.plan import ClusterPlan

DRIVER = Path("/proc/driver/nvidia/version")
DEFAULT_SIMULATED_GPUS = 4
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QueueLimitsOption = Annotated[
    str | None,
    typer.Option(metavar="3600,7200", help="Ends of the queues in GPU-seconds, ascending."),
]


def up(
    *,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Number of nodes.")] = 1,
    gpus: Annotated[
        int | None, typer.Option(min=0, max=1024, help="Simulated GPUs of each node.")
    ] = None,
    real_gpus: Annotated[
        bool, typer.Option("--real-gpus", help="Use this machine's NVIDIA GPUs (one node).")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Default: 4222 if free, else any.")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where all state is kept.")] = None,
    queue_limits: QueueLimitsOption = None,
    nats: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this server instead of an own one.")
    ] = None,
) -> None:
    """Start a cluster on this machine; Ctrl-C stops it.

    It has a server, a scheduler, and nodes. When it stops, running jobs are asked to save, and
    continue at the next 'tiresias up'.

    Examples:
      tiresias up --nodes 2 --gpus 4
      tiresias up --real-gpus
    """
    plan = ClusterPlan(
        state_dir=(state_dir or address.default_state_dir(os.environ)).absolute(),
        nodes=nodes,
        gpus=_simulated_gpus(gpus, nodes, real_gpus=real_gpus),
        port=port,
        nats_url=nats,
        scheduler_options=("--queue-limits", queue_limits) if queue_limits else (),
    )
    asyncio.run(_up(plan))


class StopSignals:
    """Signals to stop: the first asks, the second is in a hurry."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def on_signal(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()

    async def unless_stopped(self, work: Awaitable[None]) -> None:
        """Wait for the work, or for the wish to stop; the work is then cancelled."""
        tasks = [asyncio.ensure_future(work), asyncio.create_task(self.stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Take Ctrl-C, TERM and HUP as wishes to stop, within a running event loop."""
    signals = StopSignals()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, signals.on_signal)
    try:
        yield signals
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _up(plan: ClusterPlan) -> None:
    from cli import cluster  # noqa: PLC0415 - loads NATS, which not all commands need

    with stop_signals() as signals:
        output.print_note(f"starting a cluster in {plan.state_dir} ...")
        async with cluster.running(plan, output.print_note, signals.hurry) as (services, peer):
            await signals.unless_stopped(services.wait_ready(peer))
            if not signals.stop.is_set():
                with _announced(plan, services.url):
                    await signals.stop.wait()
            output.print_note(
                "\nstopping: running jobs are asked to save, and continue at the next "
                f"'tiresias up' (at most {cluster.LAUNCHER_GRACE_S:g} s; Ctrl-C again kills)"
            )
        output.print_note("stopped; nothing is left running")


@contextmanager
def _announced(plan: ClusterPlan, url: str) -> Iterator[None]:
    """Tell people and the other commands where the cluster is, while it is there."""
    content = AddressFile(url=url, pid=os.getpid(), state_dir=str(plan.state_dir))
    path = address.write(content, os.environ)
    gpus = "its own GPUs" if plan.gpus is None else f"{plan.gpus} simulated GPUs"
    output.print_lines(
        [
            f"ready: {url}, {plan.nodes} node{'s' if plan.nodes > 1 else ''} with {gpus} each",
            "  tiresias submit --gpus 1 -- python train.py   a first job",
            "  tiresias ls --watch                           what runs and waits",
            "  tiresias demo                                 see preemption at work",
            "  Ctrl-C                                        stop; jobs go on at the next up",
        ]
    )
    try:
        yield
    finally:
        address.remove(path)


def _simulated_gpus(gpus: int | None, nodes: int, *, real_gpus: bool) -> int | None:
    """Return the number of simulated GPUs, None for the machine's own."""
    if real_gpus and (gpus is not None or nodes > 1):
        raise CommandError(
            "--real-gpus makes one node of this machine: no --gpus, no --nodes", ExitCode.USAGE
        )
    if gpus is not None or real_gpus:
        return gpus
    if nodes == 1 and DRIVER.exists():
        output.print_note("found an NVIDIA driver: using its GPUs (--gpus N simulates some)")
        return None
    return DEFAULT_SIMULATED_GPUS
