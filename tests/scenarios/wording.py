"""One short line for each fact and command; jobs and runs by name, times since the start."""

import re
from collections.abc import Callable
from typing import Any

from broker.schemas.base import Output
from broker.schemas.command import PreemptRun, PrepareRun, StartRun, StopRun
from broker.schemas.fact import (
    GpuChanged,
    JobDemoted,
    JobEnded,
    JobHeld,
    JobPromoted,
    JobQueued,
    NodeCordoned,
    NodeDown,
    NodeUp,
    RunCheckpointSaved,
    RunEnded,
    RunPlaced,
    RunRestored,
    RunRunning,
    RunStopping,
)
from tests.unit.scheduler_svc.mesh import START_MS

_JOB_OR_RUN = re.compile(r"\b(?:job (\d+)|(\d+)(-\d+))\b")


def seconds(duration_ms: int) -> str:
    """Milliseconds as ``90s`` or ``0.001s``."""
    return f"{duration_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"


def since_start(at_ms: int) -> str:
    return seconds(at_ms - START_MS)


def gpu_seconds(service_gpu_ms: int) -> str:
    return f"{service_gpu_ms / 1000:.3f}".rstrip("0").rstrip(".") + " GPU s"


def named(text: str, names: dict[int, str]) -> str:
    """Put names in the place of job numbers and run ids."""

    def name_of(match: re.Match[str]) -> str:
        name = names.get(int(match[1] or match[2]))
        return match[0] if name is None else name + (match[3] or "")

    return _JOB_OR_RUN.sub(name_of, text)


def indexes(gpu_ids: list[str]) -> str:
    """GPU ids of one node as ``0..3`` or ``0,2``."""
    numbers = sorted(int(gpu_id.rpartition("gpu")[2]) for gpu_id in gpu_ids)
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}..{numbers[-1]}"
    return ",".join(map(str, numbers))


def line_of(output: Output, names: dict[int, str]) -> str:
    """Say what came out."""
    return f"{since_start(output.at_ms):>7}  " + named(_WORDING[type(output)](output), names)


def _prepare(command: PrepareRun) -> str:
    gpus = indexes([gpu_id for task in command.tasks for gpu_id in task.gpu_ids])
    others = "".join(f", {task.name}" for task in command.tasks if task.role != "worker")
    verb = "prepare and start" if command.is_whole_gang else "prepare"
    return f"{command.node} <- {verb} {command.run_id} (GPUs {gpus}{others})"


def _stop(command: StopRun) -> str:
    return (
        f"{command.node} <- stop {command.run_id}: {command.reason}, "
        f"grace {seconds(command.grace_ms)}"
    )


def _queued(fact: JobQueued) -> str:
    why = f" again: {fact.reason}" if fact.reason else ""
    return f"job {fact.job_id}: queued in Q{fact.queue_index + 1}{why}"


def _placed(fact: RunPlaced) -> str:
    nodes = dict.fromkeys(task.node for task in fact.tasks)
    return f"job {fact.job_id}: placed as {fact.run_id} on {', '.join(nodes)}"


def _stopping(fact: RunStopping) -> str:
    why = f": {fact.reason}" if fact.for_job is None else f" for job {fact.for_job}"
    return f"job {fact.job_id}: asked to stop{why}"


def _run_ended(fact: RunEnded) -> str:
    return f"job {fact.job_id}: run {fact.run_id} {fact.outcome}" + _detail(fact.message)


def _ended(fact: JobEnded) -> str:
    return f"job {fact.job_id}: ended {fact.state}" + _detail(fact.message)


def _gpu(fact: GpuChanged) -> str:
    state = "back in use" if fact.reason is None else f"out of use: {fact.reason}"
    return f"{fact.node}: GPU {indexes([fact.gpu_id])} {state}" + _detail(fact.detail)


def _detail(text: str) -> str:
    return f" ({text})" if text else ""


_WORDING: dict[type[Output], Callable[[Any], str]] = {
    PrepareRun: _prepare,
    StartRun: lambda command: f"{command.node} <- start {command.run_id}",
    PreemptRun: lambda command: (
        f"{command.node} <- preempt {command.run_id}, grace {seconds(command.grace_ms)}"
    ),
    StopRun: _stop,
    JobQueued: _queued,
    JobHeld: lambda fact: f"job {fact.job_id}: held",
    RunPlaced: _placed,
    RunRunning: lambda fact: f"job {fact.job_id}: running",
    RunStopping: _stopping,
    RunCheckpointSaved: lambda fact: f"job {fact.job_id}: saved step {fact.step}",
    RunRestored: lambda fact: f"job {fact.job_id}: resumed from step {fact.step}",
    RunEnded: _run_ended,
    JobDemoted: lambda fact: (
        f"job {fact.job_id}: demoted to Q{fact.queue_index + 1} "
        f"at {gpu_seconds(fact.attained_gpu_ms)}"
    ),
    JobPromoted: lambda fact: (
        f"job {fact.job_id}: promoted to Q1 after waiting {seconds(fact.waited_ms)}"
    ),
    JobEnded: _ended,
    NodeUp: lambda fact: f"{fact.node}: up with {fact.gpus} GPUs",
    NodeDown: lambda fact: f"{fact.node}: {fact.state}",
    NodeCordoned: lambda fact: f"{fact.node}: {'cordoned' if fact.cordoned else 'uncordoned'}",
    GpuChanged: _gpu,
}
