"""A job with its life: what was asked for, its run, what happened to earlier runs."""

from collections.abc import Iterable

import msgspec

from broker.schemas.command import TaskPlacement
from broker.schemas.job import JobSpec
from broker.schemas.run import RunExited, StopReason
from broker.schemas.views import Attempt, JobState
from scheduler_svc.core.job import Job, Placement
from scheduler_svc.core.lifecycle import JobPhase, RunPhase, next_job_phase, next_run_phase

STORY_LENGTH = 40
ATTEMPTS_SHOWN = 20


class Run(msgspec.Struct, kw_only=True):
    """One attempt: its tasks, and what each of its nodes has reported."""

    run_id: str
    phase: RunPhase = RunPhase.PREPARING
    tasks: tuple[TaskPlacement, ...]
    ports: dict[str, dict[str, int]] = {}
    """Node -> task name -> port, of the nodes that are prepared."""
    started: list[str] = []
    """Nodes whose tasks are up."""
    exits: dict[str, RunExited] = {}
    """Nodes on which the run is over."""
    stop_reason: StopReason | None = None
    """Why we told it to stop; None: we did not."""
    is_machine_fault: bool = False
    """A node or a GPU of it went away: not the job's fault."""
    abort_message: str = ""

    @property
    def nodes(self) -> list[str]:
        """The nodes of the gang, each once, in order."""
        return list(dict.fromkeys(task.node for task in self.tasks))

    def nodes_left(self) -> list[str]:
        """Nodes that have not reported the run over."""
        return [node for node in self.nodes if node not in self.exits]

    def tasks_on(self, node: str) -> tuple[TaskPlacement, ...]:
        return tuple(task for task in self.tasks if task.node == node)


class JobRecord(Job, kw_only=True):
    """A job in the scheduler's care."""

    user: str
    spec: JobSpec
    phase: JobPhase = JobPhase.QUEUED
    submitted_at_ms: int
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    end_state: JobState | None = None
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    run: Run | None = None
    attempts: int = 0
    preemptions: int = 0
    failures: int = 0
    node_losses: int = 0
    aborts_in_a_row: int = 0
    wants_cancel: bool = False
    is_cancel_forced: bool = False
    history: list[Attempt] = []
    last_tasks: dict[str, str] = {}
    story: list[str] = []

    def step(self, event: str) -> None:
        """Take a step of the job's table."""
        self.phase = next_job_phase(f"job {self.job_id}", self.phase, event, tuple(self.story))

    def step_run(self, event: str) -> None:
        """Take a step of the run's table."""
        assert self.run is not None, self.job_id
        self.run.phase = next_run_phase(
            f"run {self.run.run_id}", self.run.phase, event, tuple(self.story)
        )

    def tell(self, at_ms: int, what: str) -> None:
        """Add a line to the job's story."""
        self.story.append(f"{at_ms} {what}")
        del self.story[:-STORY_LENGTH]

    def note_attempt(self, **changes: object) -> None:
        """Change the newest attempt's record."""
        self.history[-1] = msgspec.structs.replace(self.history[-1], **changes)


def task_placements(spec: JobSpec, placement: Placement) -> tuple[TaskPlacement, ...]:
    """Turn a placement into the gang's processes.

    Workers go where the GPUs are. With parameter servers there is one chief, on the first node;
    the servers go round the nodes in turn. Ranks: workers, chief, parameter servers.
    """
    tasks = [
        TaskPlacement(role="worker", index=index, rank=index, node=node, gpu_ids=tuple(gpus))
        for index, (node, gpus) in enumerate(_worker_gpus(placement))
    ]
    if spec.ps:
        nodes = list(placement)
        tasks.append(TaskPlacement(role="chief", index=0, rank=len(tasks), node=nodes[0]))
        first_rank = len(tasks)
        tasks += [
            TaskPlacement(role="ps", index=i, rank=first_rank + i, node=nodes[i % len(nodes)])
            for i in range(spec.ps)
        ]
    return tuple(tasks)


def _worker_gpus(placement: Placement) -> Iterable[tuple[str, list[str]]]:
    for node, workers in placement.items():
        for gpus in workers:
            yield node, gpus
