"""What the supervisor of a run shall execute: one command, and the environment of each task.

A text command is a bash script run with ``-euo pipefail``: the first failing command ends it with
that command's exit code, and a pipe fails if any part of it fails. A list is executed as it is,
without a shell.
"""

from collections.abc import Mapping, Sequence

import msgspec

from broker.schemas.command import PrepareRun, TaskPlacement
from launcher.core.tf_config import tf_config

LONG_SCRIPT_BYTES = 100_000
"""Longer scripts run from a file: Linux takes at most 131,071 bytes in one argument."""
_WAIT_FOR_CHILD = "trap : TERM; "
"""A request to stop goes to the whole process group; the shell must wait for its child's save."""

Cluster = Mapping[str, Sequence[str]]


class NodePaths(msgspec.Struct, frozen=True, kw_only=True):
    """Where things of a run are on this node; all paths are absolute."""

    run_dir: str
    job_socket: str
    bell: str
    checkpoint_dir: str


class LogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A task's log is kept in at most ``segments`` files of ``segment_bytes``."""

    segment_bytes: int = 16 * 1024 * 1024
    segments: int = 8


class TaskLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """One process to start; ``env`` adds to the environment of the plan."""

    name: str
    role: str
    rank: int
    env: dict[str, str]


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All a supervisor needs to know. It inherits the launcher's environment as the base."""

    run_id: str
    run_dir: str
    bell: str
    argv: tuple[str, ...]
    script: str
    """Written to ``script.sh`` in the run's folder before the start; empty: no file."""
    env: dict[str, str]
    workdir: str
    checkpoint_dir: str
    grace_ms: int
    log_limits: LogLimits
    tasks: tuple[TaskLaunch, ...]


def build_plan(
    prepare: PrepareRun, cluster: Cluster, paths: NodePaths, log_limits: LogLimits
) -> RunPlan:
    """Plan the tasks that this node runs of a gang whose addresses are ``cluster``."""
    argv, script = command_line(prepare.spec.run, paths.run_dir)
    return RunPlan(
        run_id=prepare.run_id,
        run_dir=paths.run_dir,
        bell=paths.bell,
        argv=argv,
        script=script,
        env={**prepare.spec.env, **_run_environment(prepare, paths)},
        workdir=prepare.spec.workdir or "",
        checkpoint_dir=paths.checkpoint_dir,
        grace_ms=prepare.spec.grace_ms,
        log_limits=log_limits,
        tasks=tuple(
            TaskLaunch(
                name=task.name,
                role=task.role,
                rank=task.rank,
                env=_task_environment(task, cluster, prepare.spec.workers),
            )
            for task in local_tasks(prepare)
        ),
    )


def local_tasks(prepare: PrepareRun) -> tuple[TaskPlacement, ...]:
    """Return the tasks of the run that are placed on the command's own node."""
    return tuple(task for task in prepare.tasks if task.node == prepare.node)


def local_cluster(prepare: PrepareRun, ports: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return the addresses of a gang that is on this node alone, by role in index order."""
    roles: dict[str, tuple[str, ...]] = {}
    for task in sorted(prepare.tasks, key=lambda task: task.index):
        roles[task.role] = (*roles.get(task.role, ()), f"127.0.0.1:{ports[task.name]}")
    return roles


def command_line(run: str | Sequence[str], run_dir: str) -> tuple[tuple[str, ...], str]:
    """Return (arguments, script for a file): a short script is an argument, a long one a file."""
    if not isinstance(run, str):
        return tuple(run), ""
    script = _WAIT_FOR_CHILD + run
    if len(script.encode()) > LONG_SCRIPT_BYTES:
        return ("bash", "-euo", "pipefail", f"{run_dir}/script.sh"), script
    return ("bash", "-euo", "pipefail", "-c", script), ""


def _run_environment(prepare: PrepareRun, paths: NodePaths) -> dict[str, str]:
    spec = prepare.spec
    env = {
        "TIRESIAS_JOB_ID": str(prepare.job_id),
        "TIRESIAS_JOB_NAME": spec.name,
        "TIRESIAS_RUN_ID": prepare.run_id,
        "TIRESIAS_ATTEMPT": str(prepare.attempt),
        "TIRESIAS_USER": prepare.user,
        "TIRESIAS_WORLD_SIZE": str(spec.workers),
        "TIRESIAS_NODE": prepare.node,
        "TIRESIAS_RUN_DIR": paths.run_dir,
        "TIRESIAS_CHECKPOINT_DIR": paths.checkpoint_dir,
        "TIRESIAS_CHECKPOINT_KEEP": str(spec.checkpoint.keep),
        "TIRESIAS_GRACE_MS": str(spec.grace_ms),
        "TIRESIAS_SOCKET": paths.job_socket,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
    }
    if spec.checkpoint.every_steps is not None:
        env["TIRESIAS_CHECKPOINT_EVERY_STEPS"] = str(spec.checkpoint.every_steps)
    return env


def _task_environment(task: TaskPlacement, cluster: Cluster, workers: int) -> dict[str, str]:
    env = {
        "TIRESIAS_TASK": task.name,
        "TIRESIAS_ROLE": task.role,
        "TIRESIAS_INDEX": str(task.index),
        "TIRESIAS_RANK": str(task.rank),
        "CUDA_VISIBLE_DEVICES": ",".join(task.gpu_ids),
    }
    if sum(len(hosts) for hosts in cluster.values()) > 1:
        env["TF_CONFIG"] = tf_config(cluster, task.role, task.index)
    if task.role == "worker":
        env |= _torch_environment(task, cluster, workers)
    return env


def _torch_environment(task: TaskPlacement, cluster: Cluster, workers: int) -> dict[str, str]:
    """A worker sees only its own GPUs, so its first one is always number 0: LOCAL_RANK is 0."""
    env = {"RANK": str(task.index), "WORLD_SIZE": str(workers), "LOCAL_RANK": "0"}
    if hosts := cluster.get("worker"):
        env["MASTER_ADDR"], _, env["MASTER_PORT"] = hosts[0].rpartition(":")
    return env
