"""`tiresias logs`: what a job's tasks printed."""

from typing import Annotated

import typer

from broker.schemas.command import TaskPlacement
from cli import client
from cli.client import Client
from cli.follow import follow_jobs, leaving_jobs_running, print_logs
from cli.options import JobArgument, NatsOption
from cli.waiting import exit_as_jobs


def logs(
    job: JobArgument,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    task: Annotated[str | None, typer.Option(help="Only this task, for example worker-0.")] = None,
    rank: Annotated[int | None, typer.Option(help="Only the task of this rank.")] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Only this attempt; default: all.")
    ] = None,
    nats: NatsOption = None,
) -> None:
    """Print the output of a job.

    That of one task is printed exactly, that of several with the task's name before each line.

    With -f the exit code tells how the job ended (0, 100, 101, 102). Ctrl-C leaves the job alone
    and gives 130.

    Examples:
      tiresias logs 7
      tiresias logs -f 7 --rank 0
      tiresias logs 7 --attempt 1 --task worker-1
    """

    def is_wanted(one: TaskPlacement) -> bool:
        return task in (None, one.name) and rank in (None, one.rank)

    async def body(peer: Client) -> None:
        job_id = (await peer.job(job)).job_id
        if not follow or attempt is not None:
            await print_logs(peer, job_id, is_wanted, attempt)
            return
        exit_as_jobs(await follow_jobs(peer, [job_id], is_wanted))

    with leaving_jobs_running([job]):
        client.run(nats, body)
