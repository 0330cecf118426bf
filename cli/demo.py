"""`tiresias demo`: real training on simulated GPUs, put aside for small jobs and brought back.

It checks itself: the exit code is 1 unless the long job was preempted, went on at the step where
it had stopped, and reached the loss of an uninterrupted run.
"""

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from broker.ids import task_name
from broker.schemas.api import LogRead
from broker.schemas.job import JobSpec
from cli import demo_jobs, demo_report, output, timeline
from cli.board import Board
from cli.client import Client
from cli.demo_report import Check
from cli.exit_codes import CommandError, ExitCode
from cli.plan import ClusterPlan
from cli.up import stop_signals
from cli.waiting import outcome_line

NODES = 2
GPUS = 4
TIME_LIMIT_S = 600
REFRESH_S = 0.5
WARM_STEPS = 20
"""Let the long job get some training done before others come."""
ARRIVAL_GAP_S = 1.0
FIRST_WORKER = task_name("worker", 0)
_RESULT = re.compile(rb"done: loss ([0-9.eE+-]+)")


def demo(
    keep: Annotated[
        Path | None, typer.Option(help="Keep all state and logs in this new folder.")
    ] = None,
) -> None:
    """See two-dimensional scheduling at work, on this machine.

    Two nodes with 4 simulated GPUs each train real TensorFlow jobs on the CPU. A long job takes all
    GPUs; when it has had its share, small jobs come, it saves and gives way, and continues
    afterwards at the step where it stopped. Takes two to four minutes.

    Example:
      tiresias demo
    """
    demo_jobs.check_installed()
    if keep is not None:
        keep.mkdir(mode=0o700, parents=True)
        has_passed = asyncio.run(_demo(keep.absolute()))
    else:
        with tempfile.TemporaryDirectory(prefix="tiresias-demo-") as folder:
            has_passed = asyncio.run(_demo(Path(folder)))
    raise typer.Exit(ExitCode.DONE if has_passed else ExitCode.ERROR)


async def _demo(state_dir: Path) -> bool:
    from cli import cluster  # noqa: PLC0415 - loads NATS, which not all commands need

    plan = ClusterPlan(
        state_dir=state_dir,
        nodes=NODES,
        gpus=GPUS,
        scheduler_options=demo_jobs.SCHEDULER_OPTIONS,
    )
    judged: list[Check] = []
    with stop_signals() as signals:
        output.print_lines([f"starting {NODES} nodes with {GPUS} simulated GPUs each ..."])
        async with cluster.running(plan, output.print_note, signals.hurry) as (services, peer):
            try:
                await signals.unless_stopped(services.wait_ready(peer))
                if not signals.stop.is_set():
                    output.print_lines([f"ready: TIRESIAS_NATS={services.url}", ""])
                    node_gpus = dict.fromkeys(plan.node_names, GPUS)
                    await signals.unless_stopped(_play(peer, node_gpus, judged))
            finally:
                signals.hurry.set()
    if signals.stop.is_set():
        raise CommandError("stopped; nothing is left running", ExitCode.INTERRUPTED)
    demo_report.print_checks(judged)
    return all(check.is_kept for check in judged)


async def _play(peer: Client, node_gpus: dict[str, int], judged: list[Check]) -> None:
    """Submit the jobs at their times, show them, and judge the outcome."""
    board = Board(peer)
    try:
        async with asyncio.timeout(TIME_LIMIT_S), board.shown(REFRESH_S):
            long = await _submit(peer, board, demo_jobs.long_job())
            await board.wait_for(lambda: _has_had_its_share(board, long))
            for spec in demo_jobs.small_jobs():
                await _submit(peer, board, spec)
                await asyncio.sleep(ARRIVAL_GAP_S)
            await board.wait_for(board.have_all_ended)
            views = [board.views[job_id] for job_id in board.job_ids]
            reference = await _submit(peer, board, demo_jobs.reference_job())
            await board.wait_for(board.have_all_ended)
    except TimeoutError as error:
        raise CommandError(f"the demo did not end in {TIME_LIMIT_S} s") from error
    output.print_lines(["", *timeline.draw(views, peer.clock.now_ms()), ""])
    demo_report.print_summary(views, node_gpus)
    judged += demo_report.checks(views, (await _loss(peer, long), await _loss(peer, reference)))


def _has_had_its_share(board: Board, job_id: int) -> bool:
    """Tell whether the long job has passed its queue's limit, and has trained a while."""
    view = board.views.get(job_id)
    if view is None:
        return False
    if view.state.is_terminal:
        raise CommandError(f"the long job ended too early: {outcome_line(view)}")
    return view.queue_index > 0 and board.step_of(job_id) >= WARM_STEPS


async def _submit(peer: Client, board: Board, spec: JobSpec) -> int:
    job_id = (await peer.submit(msgspec.json.encode(spec))).seq
    board.job_ids.append(job_id)
    return job_id


async def _loss(peer: Client, job_id: int) -> float | None:
    """Return the loss that a job's first worker printed last, None if it printed none."""
    view = await peer.job(str(job_id))
    node = view.tasks.get(FIRST_WORKER)
    if node is None:
        return None
    log, offset, is_final = b"", 0, False
    while not is_final:
        read = LogRead(run_id=f"{job_id}-{view.attempts}", task=FIRST_WORKER, offset=offset)
        chunk = await peer.read_log(node, read)
        log, offset = log + chunk.data, chunk.next_offset
        is_final = chunk.final or not chunk.data
    found = _RESULT.findall(log)
    return float(found[-1]) if found else None
