"""Who owns which GPU in truth: what launchers say against what we think.

A launcher's own ledger is right. GPUs of a run we do not know are *foreign* until it is over; GPUs
on which processes of an ended run remain are out of use.
"""

from broker.schemas.command import StopRun
from broker.schemas.fact import GpuChanged
from broker.schemas.node import GpuFaultReason
from broker.schemas.run import InventoryReported, RunExited, StopReason
from scheduler_svc.core.world import World


def launcher_reported(world: World, message: InventoryReported) -> None:
    """The node's launcher is there; GPUs of foreign runs it no longer has are free."""
    node = world.cluster.node(message.node)
    node.launcher_boot_id = message.boot_id
    reported = {report.run_id for report in message.runs}
    for gpu in node.gpus.values():
        if gpu.foreign_run not in reported:
            gpu.foreign_run = None
    world.changed_nodes.add(message.node)


def launcher_silent(world: World, name: str) -> None:
    """A launcher did not answer a command: place nothing there until it reports again."""
    world.cluster.node(name).launcher_boot_id = ""
    world.changed_nodes.add(name)


def believe_owners(world: World, name: str, owners: dict[str, str]) -> None:
    """A launcher refused because runs we do not know own GPUs: its ledger is right; stop them."""
    node = world.cluster.nodes[name]
    for gpu_id, run_id in sorted(owners.items()):
        gpu = node.gpus.get(gpu_id)
        if gpu is not None and world.find_run(run_id, name) is None:
            gpu.foreign_run = run_id
    for run_id in sorted({gpu.foreign_run for gpu in node.gpus.values() if gpu.foreign_run}):
        world.emit(StopRun, node=name, run_id=run_id, reason=StopReason.UNKNOWN_RUN, grace_ms=0)
    world.changed_nodes.add(name)


def foreign_run_over(world: World, report: RunExited) -> None:
    """A run we do not know (any more) has ended: its GPUs there are free."""
    if report.node in world.cluster.nodes:
        quarantine_leftovers(world, report)
        world.cluster.release(report.run_id, (report.node,))
        world.changed_nodes.add(report.node)


def quarantine_leftovers(world: World, report: RunExited) -> None:
    """Processes of the run could not be killed: its GPUs there are not free."""
    if not report.leftover_pids:
        return
    detail = f"processes {', '.join(map(str, report.leftover_pids))} of {report.run_id} remain"
    for gpu_id, gpu in world.cluster.nodes[report.node].gpus.items():
        if report.run_id in (gpu.owner, gpu.foreign_run):
            gpu.fault, gpu.fault_detail = GpuFaultReason.DIRTY, detail
            world.emit(
                GpuChanged,
                node=report.node,
                gpu_id=gpu_id,
                reason=GpuFaultReason.DIRTY,
                detail=detail,
            )
