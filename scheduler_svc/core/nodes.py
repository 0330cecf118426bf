"""What nodes say and what is known of them: joining, silence, loss, faults, ledgers."""

from broker.schemas.fact import GpuChanged, NodeCordoned, NodeDown, NodeUp
from broker.schemas.node import (
    GpuHealthChanged,
    NodeCordonRequested,
    NodeHeard,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSilent,
    NodeUncordonRequested,
)
from broker.schemas.run import LauncherLeft, StopReason
from scheduler_svc.core import ledger, runs
from scheduler_svc.core.world import World


def on_joined(world: World, message: NodeJoined) -> None:
    """A node offers its GPUs. After a restart of the machine nothing of before runs there."""
    known = world.cluster.nodes.get(message.node)
    is_rebooted = known is not None and known.boot_id not in ("", message.boot_id)
    was_silent = known is not None and known.state == "silent"
    node = world.cluster.join(message)
    if is_rebooted:
        _lose_runs(world, message.node, f"machine {message.node} restarted")
    for gpu_id, gpu in node.gpus.items():
        if not gpu.is_healthy:
            _stop_owner(world, message.node, gpu_id, f"GPU {gpu_id} of {message.node} is gone")
    if was_silent:
        _tell_runs(world, message.node, f"node {message.node} is heard again")
    world.emit(NodeUp, node=message.node, gpus=node.healthy_gpus(), problem=message.problem)


def on_left(world: World, message: NodeLeft) -> None:
    """The agent stopped on purpose: what runs there goes on, nothing new starts."""
    if _down(world, message.node, "left"):
        _tell_runs(world, message.node, f"the agent of {message.node} left")


def on_silent(world: World, message: NodeSilent) -> None:
    """Not heard for a while: its runs are UNKNOWN until it is heard again or given up."""
    if _down(world, message.node, "silent"):
        _tell_runs(world, message.node, f"node {message.node} is silent")


def on_heard(world: World, message: NodeHeard) -> None:
    """Heard again: in time, its runs went on; given up before, its launcher must report first."""
    node = world.cluster.nodes.get(message.node)
    if node is not None and node.state in ("silent", "lost"):
        node.state = "up"
        _tell_runs(world, message.node, f"node {message.node} is heard again")
        world.emit(NodeUp, node=node.name, gpus=node.healthy_gpus(), problem=node.problem)


def on_lost(world: World, message: NodeLost) -> None:
    """Silent past its launcher's lease: its launcher has stopped what ran there."""
    if _down(world, message.node, "lost"):
        world.cluster.nodes[message.node].launcher_boot_id = ""
        _lose_runs(world, message.node, f"node {message.node} lost")


def on_gpu_health(world: World, message: GpuHealthChanged) -> None:
    """One GPU goes out of use or comes back; a run on a bad one restarts elsewhere."""
    node = world.cluster.nodes.get(message.node)
    gpu = node.gpus.get(message.gpu_id) if node is not None else None
    if gpu is None or gpu.fault is message.reason:
        return
    gpu.fault, gpu.fault_detail = message.reason, message.detail
    world.emit(
        GpuChanged,
        node=message.node,
        gpu_id=message.gpu_id,
        reason=message.reason,
        detail=message.detail,
    )
    if message.reason is not None:
        cause = f"GPU {message.gpu_id} of {message.node}: {message.reason} {message.detail}"
        _stop_owner(world, message.node, message.gpu_id, cause.strip())


def on_cordon(world: World, message: NodeCordonRequested) -> None:
    """Nothing new starts on the node."""
    _set_cordon(world, message.node, is_cordoned=True, user=message.user, note=message.note)


def on_uncordon(world: World, message: NodeUncordonRequested) -> None:
    """The node takes work again."""
    _set_cordon(world, message.node, is_cordoned=False, user=message.user, note="")


def on_launcher_left(world: World, message: LauncherLeft) -> None:
    """Nobody would carry out a command there."""
    ledger.launcher_silent(world, message.node)


def _down(world: World, name: str, state: str) -> bool:
    """Set the state of a node we know; say if it changed."""
    node = world.cluster.nodes.get(name)
    if node is None or node.state == state:
        return False
    node.state = state
    world.emit(NodeDown, node=name, state=state)
    return True


def _tell_runs(world: World, name: str, what: str) -> None:
    for job, _ in runs.runs_on(world, name):
        world.tell(job, what)


def _set_cordon(world: World, name: str, *, is_cordoned: bool, user: str, note: str) -> None:
    node = world.cluster.nodes.get(name)
    if node is None or node.is_cordoned == is_cordoned:
        return
    node.is_cordoned, node.note = is_cordoned, note
    world.emit(NodeCordoned, node=name, cordoned=is_cordoned, user=user, note=note)


def _lose_runs(world: World, name: str, cause: str) -> None:
    for job, run in runs.runs_on(world, name):
        runs.lose_node(world, job, run, name, cause)
    for gpu in world.cluster.nodes[name].gpus.values():
        gpu.foreign_run = None


def _stop_owner(world: World, name: str, gpu_id: str, cause: str) -> None:
    """Move the run on a bad GPU elsewhere: it may still save, and it is not its fault."""
    owner = world.cluster.gpu(name, gpu_id).owner
    found = world.find_run(owner, name) if owner is not None else None
    if found is not None and name not in found[1].exits:
        job, run = found
        run.is_machine_fault = True
        run.abort_message = run.abort_message or cause
        runs.stop(world, job, StopReason.PREEMPT)
