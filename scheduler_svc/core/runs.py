"""The life of a run: place, prepare, start, stop, over; driven by what launchers report.

A gang on several nodes starts in two phases: every launcher answers with its ports, only then
does the gang start; one refusal aborts all. On one node its launcher prepares and starts in one
step. A stopping run owns its GPUs until every launcher has reported.
"""

from broker.ids import is_run_id
from broker.ids import run_id as make_run_id
from broker.schemas.command import PreemptRun, PrepareRun, StartRun, StopRun
from broker.schemas.fact import (
    RunCheckpointSaved,
    RunEnded,
    RunPlaced,
    RunRestored,
    RunRunning,
    RunStopping,
)
from broker.schemas.run import (
    InventoryReported,
    PrepareRefusal,
    RunCheckpointed,
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunResumed,
    RunStarted,
    StopReason,
)
from broker.schemas.views import Attempt, RunOutcome
from scheduler_svc.core import ledger
from scheduler_svc.core.job import Placement
from scheduler_svc.core.lifecycle import RunPhase
from scheduler_svc.core.record import ATTEMPTS_SHOWN, JobRecord, Run, task_placements
from scheduler_svc.core.timers import TimerKind
from scheduler_svc.core.verdict import has_failed_task, has_finished_chief, judge
from scheduler_svc.core.world import World

_OVERRIDING = frozenset((StopReason.CANCEL, StopReason.TIME_LIMIT))


def place(world: World, job: JobRecord, placement: Placement) -> None:
    """Give the job GPUs and tell their launchers to prepare."""
    job.attempts += 1
    run = Run(
        run_id=make_run_id(job.job_id, job.attempts), tasks=task_placements(job.spec, placement)
    )
    world.engine.acquire(job, placement, run.run_id, world.now_ms)
    world.engine.timers.set(
        job.job_id, TimerKind.LAUNCH, world.now_ms + world.settings.launch_limit_ms
    )
    job.run = run
    job.step("place")
    job.reason = ""
    job.last_tasks = {task.name: task.node for task in run.tasks}
    job.history = [
        *job.history[1 - ATTEMPTS_SHOWN :],
        Attempt(run_id=run.run_id, nodes=tuple(run.nodes), placed_at_ms=world.now_ms),
    ]
    world.tell(job, f"run {run.run_id} placed on {', '.join(run.nodes)}")
    world.emit(RunPlaced, job_id=job.job_id, run_id=run.run_id, tasks=run.tasks)
    for node in run.nodes:
        world.emit(
            PrepareRun,
            node=node,
            run_id=run.run_id,
            job_id=job.job_id,
            attempt=job.attempts,
            user=job.user,
            spec=job.spec,
            tasks=run.tasks_on(node),
            is_whole_gang=len(run.nodes) == 1,
        )


def stop(
    world: World,
    job: JobRecord,
    reason: StopReason,
    *,
    grace_ms: int | None = None,
    for_job: int | None = None,
) -> None:
    """Tell every node of the run to stop it. The job's own reasons overrule earlier ones.

    Only a run that is put aside for another job's sake goes on at once; all others are withheld
    from passes until it is known what becomes of their job.
    """
    run = job.run
    assert run is not None, job.job_id
    is_withheld = reason is not StopReason.PREEMPT or run.is_machine_fault
    if run.phase is RunPhase.STOPPING and reason not in _OVERRIDING:
        if is_withheld:
            world.engine.withhold(job)
        return
    run.stop_reason = reason
    job.step_run("stop")
    world.engine.begin_release(job)
    if is_withheld:
        world.engine.withhold(job)
    world.engine.timers.set(job.job_id, TimerKind.TIME_LIMIT, None)
    if job.history[-1].asked_at_ms is None:
        job.note_attempt(asked_at_ms=world.now_ms)
    grace_ms = job.spec.grace_ms if grace_ms is None else grace_ms
    for node in run.nodes_left():
        if reason is StopReason.PREEMPT:
            world.emit(PreemptRun, node=node, run_id=run.run_id, grace_ms=grace_ms)
        else:
            world.emit(StopRun, node=node, run_id=run.run_id, reason=reason, grace_ms=grace_ms)
    whom = "" if for_job is None else f" for job {for_job}"
    world.tell(job, f"run {run.run_id} asked to stop: {reason}{whom}")
    world.emit(
        RunStopping, job_id=job.job_id, run_id=run.run_id, reason=reason.value, for_job=for_job
    )


def on_prepared(world: World, message: RunPrepared) -> None:
    """One launcher is ready; when all are, the gang starts."""
    found = world.find_run(message.run_id, message.node)
    if found is None or found[1].phase is not RunPhase.PREPARING:
        return
    job, run = found
    run.ports[message.node] = message.ports
    if len(run.ports) < len(run.nodes):
        return
    job.step_run("all_prepared")
    cluster = _cluster_spec(world, run)
    for node in run.nodes:
        world.emit(StartRun, node=node, run_id=run.run_id, cluster=cluster)
    world.touch(job.job_id)


def on_refused(world: World, message: RunPrepareRefused) -> None:
    """One launcher cannot take its part: nobody starts. Its ledger of owners is believed."""
    found = world.find_run(message.run_id, message.node)
    if found is None or message.node in found[1].exits:
        return
    job, run = found
    run.abort_message = f"{message.node}: {message.reason} {message.detail}".strip()
    world.tell(job, f"refused by {run.abort_message}")
    _exited(world, job, run, RunExited(node=message.node, run_id=run.run_id))
    if run.nodes_left():
        stop(world, job, StopReason.ABORT, grace_ms=0)
    if message.reason is PrepareRefusal.GPU_BUSY:
        ledger.believe_owners(world, message.node, message.owners)


def on_started(world: World, message: RunStarted) -> None:
    """One node's tasks are up; those of a run that was given up must not stay."""
    found = world.find_run(message.run_id, message.node)
    if found is not None:
        _up(world, *found, message.node)
    elif is_run_id(message.run_id):
        _stop_unknown(world, message.node, message.run_id)


def _up(world: World, job: JobRecord, run: Run, node: str) -> None:
    """When the tasks of all nodes are up, service counts."""
    run.ports.setdefault(node, {})
    if node not in run.started:
        run.started.append(node)
    is_coming_up = run.phase in (RunPhase.PREPARING, RunPhase.STARTING)
    if not is_coming_up or len(run.started) < len(run.nodes):
        return
    job.step_run("all_started")
    job.aborts_in_a_row = 0
    if job.started_at_ms is None:
        job.started_at_ms = world.now_ms
    world.engine.timers.set(job.job_id, TimerKind.LAUNCH, None)
    world.engine.begin_service(job, world.now_ms)
    if job.spec.time_limit_ms is not None:
        used_ms = job.service_at(world.now_ms) // job.gpus
        due_ms = world.now_ms + max(0, job.spec.time_limit_ms - used_ms)
        world.engine.timers.set(job.job_id, TimerKind.TIME_LIMIT, due_ms)
    job.note_attempt(running_at_ms=world.now_ms)
    _measure_preemption(world, job)
    world.tell(job, f"run {run.run_id} running")
    world.emit(RunRunning, job_id=job.job_id, run_id=run.run_id)


def on_exited(world: World, message: RunExited) -> None:
    """The run is over on one node; what that means for the others follows from how.

    Tasks that were over before their start was told were up, too.
    """
    found = world.find_run(message.run_id, message.node)
    if found is None:
        ledger.foreign_run_over(world, message)
        return
    job, run = found
    if message.node in run.exits:
        return
    if message.tasks:
        _up(world, job, run, message.node)
    _exited(world, job, run, message)


def on_checkpointed(world: World, message: RunCheckpointed) -> None:
    """A save is complete."""
    found = world.find_run(message.run_id, message.node)
    if found is None:
        return
    job, run = found
    job.note_attempt(saved_step=message.step, save_ms=message.save_ms)
    if message.asked:
        job.note_attempt(saved_at_ms=world.now_ms)
    world.tell(job, f"checkpoint at step {message.step} in {message.save_ms} ms")
    world.emit(
        RunCheckpointSaved,
        job_id=job.job_id,
        run_id=run.run_id,
        step=message.step,
        save_ms=message.save_ms,
        asked=message.asked,
    )


def on_resumed(world: World, message: RunResumed) -> None:
    """The first step of the run is done."""
    found = world.find_run(message.run_id, message.node)
    if found is None:
        return
    job, run = found
    job.note_attempt(
        first_step_at_ms=world.now_ms,
        resumed_step=message.step,
        restore_ms=message.restore_ms,
        first_step_ms=message.first_step_ms,
    )
    _measure_preemption(world, job)
    world.tell(job, f"first step after step {message.step}")
    world.emit(
        RunRestored,
        job_id=job.job_id,
        run_id=run.run_id,
        step=message.step,
        restore_ms=message.restore_ms,
        first_step_ms=message.first_step_ms,
    )


def on_inventory(world: World, message: InventoryReported) -> None:
    """What a launcher has against what we think: unknown runs are stopped, missing ones lost."""
    ledger.launcher_reported(world, message)
    reported = {report.run_id for report in message.runs}
    for run_id in sorted(reported):
        if world.find_run(run_id, message.node) is None:
            _stop_unknown(world, message.node, run_id)
    for job, run in runs_on(world, message.node):
        was_acknowledged = message.node in run.ports
        if was_acknowledged and run.run_id not in reported:
            lose_node(world, job, run, message.node, f"unknown to the launcher of {message.node}")


def on_launch_limit(world: World, job: JobRecord) -> None:
    """The gang is not up whole in time: give it up; silent launchers have nothing of it."""
    run = job.run
    assert run is not None, job.job_id
    silent = [node for node in run.nodes_left() if node not in run.ports]
    run.abort_message = run.abort_message or (
        f"not up within {world.settings.launch_limit_ms} ms; "
        f"no answer from {', '.join(silent) or 'started tasks'}"
    )
    stop(world, job, StopReason.ABORT, grace_ms=0)
    for node in silent:
        ledger.launcher_silent(world, node)
        _exited(world, job, run, RunExited(node=node, run_id=run.run_id))


def on_time_limit(world: World, job: JobRecord) -> None:
    """The job has run as long as its user allowed."""
    stop(world, job, StopReason.TIME_LIMIT)


def lose_node(world: World, job: JobRecord, run: Run, node: str, message: str) -> None:
    """A node's part of the run is gone, and it is not the job's fault."""
    run.is_machine_fault = True
    run.abort_message = run.abort_message or message
    _exited(world, job, run, RunExited(node=node, run_id=run.run_id, lost=True))


def runs_on(world: World, node: str) -> list[tuple[JobRecord, Run]]:
    """Live runs with a part on the node that is not over, in order of submission."""
    return [
        (job, job.run)
        for job in world.jobs.values()
        if job.run is not None and node in job.run.nodes_left()
    ]


def _exited(world: World, job: JobRecord, run: Run, report: RunExited) -> None:
    run.exits[report.node] = report
    ledger.quarantine_leftovers(world, report)
    if report.ask_to_exit_ms is not None:
        job.note_attempt(stop_ms=max(job.history[-1].stop_ms or 0, report.ask_to_exit_ms))
    world.touch(job.job_id)
    if not run.nodes_left():
        _over(world, job, run)
    elif report.lost or has_failed_task(report):
        stop(world, job, StopReason.PEER_FAILED, grace_ms=_peer_grace_ms(job))
    elif has_finished_chief(report):
        stop(world, job, StopReason.PEER_FINISHED, grace_ms=_peer_grace_ms(job))
    elif report.asked is not None:
        stop(world, job, StopReason.PREEMPT)


def _over(world: World, job: JobRecord, run: Run) -> None:
    """Every node has reported: free the GPUs, then decide what becomes of the job."""
    verdict = judge(run)
    job.step_run("all_exited")
    world.engine.release(job, run.run_id, world.now_ms)
    world.engine.timers.set(job.job_id, TimerKind.LAUNCH, None)
    world.engine.timers.set(job.job_id, TimerKind.TIME_LIMIT, None)
    world.touch(job.job_id)
    job.run = None
    job.note_attempt(ended_at_ms=world.now_ms, outcome=verdict.outcome, message=verdict.message)
    world.tell(job, f"run {run.run_id} {verdict.outcome}", verdict.message)
    world.emit(
        RunEnded,
        job_id=job.job_id,
        run_id=run.run_id,
        outcome=verdict.outcome,
        message=verdict.message,
    )
    world.verdicts.append((job, verdict))


def _measure_preemption(world: World, job: JobRecord) -> None:
    """After a resume: what asking, saving, stopping, starting and restoring took in all."""
    if len(job.history) == 1 or job.history[-2].outcome is not RunOutcome.PREEMPTED:
        return
    before, now = job.history[-2:]
    assert before.ended_at_ms is not None, job.job_id
    stop_ms = before.ended_at_ms - (before.asked_at_ms or before.ended_at_ms)
    world.engine.note_preemption_cost(job, stop_ms + world.now_ms - now.placed_at_ms)


def _stop_unknown(world: World, node: str, run_id: str) -> None:
    """A launcher has a run that is not, or no longer, ours."""
    world.emit(StopRun, node=node, run_id=run_id, reason=StopReason.UNKNOWN_RUN, grace_ms=0)


def _peer_grace_ms(job: JobRecord) -> int:
    """Peers of an ended task have nothing to save together: they get a short grace."""
    return min(job.spec.grace_ms, 10_000)


def _cluster_spec(world: World, run: Run) -> dict[str, tuple[str, ...]]:
    """Role -> ``host:port`` of each task in index order, from what the launchers reserved."""
    roles: dict[str, list[str]] = {}
    for task in run.tasks:
        host = world.cluster.nodes[task.node].host
        port = run.ports[task.node].get(task.name, 0)
        roles.setdefault(task.role, []).append(f"{host}:{port}")
    return {role: tuple(addresses) for role, addresses in roles.items()}
