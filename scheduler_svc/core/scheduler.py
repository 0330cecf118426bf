"""The scheduler core: one input in, outputs out, no clock of its own.

`Scheduler.handle` is the only mutator. Deadlines due before an input act first, each at its own
time, in order; then the input, then what is due at its own time, then a pass.
"""

from collections.abc import Callable
from typing import Any

from broker.schemas.base import Input, Output
from broker.schemas.fact import JobDemoted, JobPromoted
from broker.schemas.job import (
    JobCancelRequested,
    JobHoldRequested,
    JobRefused,
    JobReleaseRequested,
    JobSubmitted,
)
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
from broker.schemas.operator import (
    ClockAdvanced,
    PackLimitChanged,
    Settings,
    SettingsChanged,
    SkewMeasured,
)
from broker.schemas.run import (
    InventoryReported,
    LauncherLeft,
    RunCheckpointed,
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunResumed,
    RunStarted,
    StopReason,
    TensorsObserved,
)
from broker.schemas.views import Explanation, JobView, NodeView
from scheduler_svc.core import invariants, jobs, knobs, nodes, runs, snapshot
from scheduler_svc.core.explain import explanation
from scheduler_svc.core.timers import TimerKind
from scheduler_svc.core.views import job_view, node_view, shown_state
from scheduler_svc.core.world import World

_HANDLERS: dict[type[Input], Callable[[World, Any], None]] = {
    JobCancelRequested: jobs.on_cancel,
    JobHoldRequested: jobs.on_hold,
    JobReleaseRequested: jobs.on_release,
    NodeJoined: nodes.on_joined,
    NodeLeft: nodes.on_left,
    NodeSilent: nodes.on_silent,
    NodeHeard: nodes.on_heard,
    NodeLost: nodes.on_lost,
    GpuHealthChanged: nodes.on_gpu_health,
    NodeCordonRequested: nodes.on_cordon,
    NodeUncordonRequested: nodes.on_uncordon,
    LauncherLeft: nodes.on_launcher_left,
    RunPrepared: runs.on_prepared,
    RunPrepareRefused: runs.on_refused,
    RunStarted: runs.on_started,
    RunExited: runs.on_exited,
    RunCheckpointed: runs.on_checkpointed,
    RunResumed: runs.on_resumed,
    InventoryReported: runs.on_inventory,
    TensorsObserved: knobs.on_tensors,
    SkewMeasured: knobs.on_skew,
    PackLimitChanged: knobs.on_pack_limit,
    SettingsChanged: knobs.on_settings,
    ClockAdvanced: lambda *_: None,
}
_CHANGES_NO_PLAN = (RunPrepared, RunStarted, RunCheckpointed, RunResumed, ClockAdvanced)


class Scheduler:
    """The scheduler's whole state. ``is_checked`` verifies all invariants after every input."""

    def __init__(self, settings: Settings | None = None, *, is_checked: bool = False) -> None:
        self._world = World(settings or Settings())
        self._is_checked = is_checked

    @property
    def now_ms(self) -> int:
        """The core's clock: the largest input time seen."""
        return self._world.now_ms

    @property
    def settings(self) -> Settings:
        return self._world.settings

    def handle(self, seq: int, message: Input, at_ms: int) -> list[Output]:
        """Act on the input with log sequence ``seq`` and log time ``at_ms`` (milliseconds)."""
        world = self._world
        self._forget_ended()
        world.begin(seq)
        at_ms = max(world.now_ms, at_ms)
        while (due_ms := world.engine.timers.next_ms()) is not None and due_ms < at_ms:
            world.now_ms = max(world.now_ms, due_ms)
            self._fire_due()
            self._pass()
        world.now_ms = at_ms
        self._dispatch(seq, message)
        self._conclude()
        if self._fire_due() or not isinstance(message, _CHANGES_NO_PLAN):
            self._pass()
        if self._is_checked:
            invariants.check(world)
        return world.take_outputs()

    def next_deadline_ms(self) -> int | None:
        """When a `ClockAdvanced` is needed, if no other input comes first."""
        return self._world.engine.timers.next_ms()

    def take_changed_views(self) -> list[JobView | NodeView]:
        """Views of the jobs and nodes changed since the last call."""
        world = self._world
        changed_jobs, changed_nodes = sorted(world.changed_jobs), sorted(world.changed_nodes)
        world.changed_jobs, world.changed_nodes = set(), set()
        views: list[JobView | NodeView] = [*world.rejected]
        world.rejected = []
        views += [job_view(world, world.jobs[i]) for i in changed_jobs if i in world.jobs]
        nodes_by_name = world.cluster.nodes
        views += [node_view(world, nodes_by_name[n]) for n in changed_nodes if n in nodes_by_name]
        return views

    def all_views(self) -> list[JobView | NodeView]:
        """Views of every active job and every node."""
        world = self._world
        return [
            *(job_view(world, job) for job in world.jobs.values()),
            *(node_view(world, node) for node in world.cluster.nodes.values()),
        ]

    def explain(self, job_id: int, now_ms: int = 0) -> Explanation | None:
        """Why the job is where it is; None if it is not active.

        Clocks are read at ``now_ms``, or at the last input if that is later.
        """
        job = self._world.jobs.get(job_id)
        if job is None:
            return None
        at_ms = max(self._world.now_ms, now_ms)
        return explanation(self._world, job, shown_state(self._world, job), at_ms)

    def snapshot(self) -> bytes:
        """Return the whole state; `restore` continues from it with the same decisions."""
        return snapshot.take(self._world)

    @classmethod
    def restore(cls, data: bytes, *, is_checked: bool = False) -> "Scheduler":
        """Rebuild a scheduler from `snapshot`; raises msgspec's errors on damaged bytes."""
        scheduler = cls(is_checked=is_checked)
        scheduler._world = snapshot.restore(data)
        return scheduler

    def check(self) -> None:
        """Raise `InvariantError` if a rule that always holds does not."""
        invariants.check(self._world)

    def _dispatch(self, seq: int, message: Input) -> None:
        if isinstance(message, JobSubmitted):
            jobs.on_submitted(self._world, seq, message)
        elif isinstance(message, JobRefused):
            jobs.on_refused(self._world, seq, message)
        else:
            _HANDLERS[type(message)](self._world, message)

    def _fire_due(self) -> bool:
        """Let every timer due now act; say if there was one."""
        world = self._world
        has_fired = False
        while (due := world.engine.timers.pop_due(world.now_ms)) is not None:
            has_fired = True
            self._fire(*due)
            self._conclude()
        return has_fired

    def _fire(self, job_id: int, kind: TimerKind) -> None:
        world = self._world
        job = world.jobs[job_id]
        if kind is TimerKind.LAUNCH:
            runs.on_launch_limit(world, job)
        elif kind is TimerKind.TIME_LIMIT:
            runs.on_time_limit(world, job)
        elif kind is TimerKind.PROMOTE:
            waited_ms = job.waited_at(world.now_ms)
            world.engine.on_timer(job, kind, world.now_ms)
            world.tell(job, f"promoted to Q1 after waiting {waited_ms} ms")
            world.emit(JobPromoted, job_id=job_id, waited_ms=waited_ms)
        elif kind is TimerKind.DEMOTE:
            world.engine.on_timer(job, kind, world.now_ms)
            world.tell(job, f"demoted to Q{job.queue_index + 1}")
            world.emit(
                JobDemoted,
                job_id=job_id,
                queue_index=job.queue_index,
                attained_gpu_ms=job.gpus * job.executed_at(world.now_ms),
            )

    def _conclude(self) -> None:
        """Tell the jobs whose run is over what becomes of them."""
        verdicts, self._world.verdicts = self._world.verdicts, []
        for job, verdict in verdicts:
            jobs.after_run(self._world, job, verdict)

    def _pass(self) -> None:
        """Pass until nobody is put aside any more: whoever is may find GPUs elsewhere at once."""
        while self._pass_once():
            pass

    def _pass_once(self) -> bool:
        """Decide who holds which GPUs and carry it out; say if somebody was put aside."""
        world = self._world
        plan = world.engine.decide(world.now_ms)
        for victim, for_job in plan.preempts:
            runs.stop(world, world.jobs[victim.job_id], StopReason.PREEMPT, for_job=for_job)
        for job, placement in plan.starts:
            runs.place(world, world.jobs[job.job_id], placement)
        world.engine.settle()
        for job in plan.changed:
            world.touch(job.job_id)
        return bool(plan.preempts)

    def _forget_ended(self) -> None:
        """Jobs that ended with an earlier input live on in their views only."""
        world = self._world
        for job_id in world.ended:
            del world.jobs[job_id]
        world.ended = []
        world.rejected = []
