"""`tiresias wait`, and waiting for jobs in other commands."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, NoReturn

import typer

from broker.schemas.job import DURATION_PATTERN, duration_ms
from broker.schemas.views import JobView
from cli import client, output
from cli.client import Client
from cli.exit_codes import CommandError, ExitCode, of_job
from cli.options import JobsArgument, NatsOption, OutputOption
from cli.output import Format

POLL_S = 0.1
_WORST_FIRST = (ExitCode.JOB_FAILED, ExitCode.JOB_TIMED_OUT, ExitCode.JOB_CANCELLED)


def wait(
    jobs: JobsArgument,
    *,
    timeout: Annotated[str | None, typer.Option(metavar="10m", help="Longest wait.")] = None,
    pass_code: Annotated[
        bool, typer.Option("--pass-code", help="End with the job's own exit code (one job).")
    ] = False,
    form: OutputOption = Format.TABLE,
    nats: NatsOption = None,
) -> None:
    """Wait until jobs have ended; the exit code tells how.

    0 all succeeded, 100 one failed, 101 cancelled, 102 timed out, 7 the wait ran out.
    Examples:
      tiresias wait 7 && tiresias submit next.yaml
      tiresias wait 7 8 9 --timeout 2h
    """
    timeout_s = seconds_of("--timeout", timeout)

    async def body(peer: Client) -> list[JobView]:
        job_ids = [(await peer.job(reference)).job_id for reference in jobs]
        return await wait_for_jobs(peer, job_ids, timeout_s, form)

    exit_as_jobs(client.run(nats, body), pass_code=pass_code)


async def wait_for_jobs(
    peer: Client, job_ids: Sequence[int], timeout_s: float | None, form: Format = Format.TABLE
) -> list[JobView]:
    """Return the views of jobs that have all ended, telling each end as it comes."""

    async def one(job_id: int) -> JobView:
        view = await peer.wait_until(job_id, lambda view: view.state.is_terminal)
        if form is not Format.JSON:
            output.print_lines([outcome_line(view)])
        return view

    unique = dict.fromkeys(job_ids)
    try:
        async with asyncio.timeout(timeout_s):
            views = await asyncio.gather(*(one(job_id) for job_id in unique))
    except TimeoutError as error:
        raise CommandError(
            f"the wait ran out after {timeout_s:g} s; the jobs go on", ExitCode.WAIT_RAN_OUT
        ) from error
    if form is Format.JSON:
        output.print_json(views)
    return views


def outcome_line(view: JobView) -> str:
    """Tell how a job ended, in one line."""
    end = f"job {view.job_id} {view.name}: {view.state}"
    if view.ended_at_ms is not None:
        end += f" after {output.span(view.ended_at_ms - view.submitted_at_ms)}"
    said = view.message or view.reason
    return output.printable(end if said.upper() in ("", view.state) else f"{end}: {said}")


def exit_as_jobs(views: Iterable[JobView], *, pass_code: bool = False) -> NoReturn:
    """End the command with the code of the worst outcome."""
    ended = list(views)
    if pass_code and len(ended) == 1 and ended[0].exit_code:
        raise typer.Exit(ended[0].exit_code)
    codes = {of_job(view) for view in ended}
    raise typer.Exit(next((code for code in _WORST_FIRST if code in codes), ExitCode.DONE))


def seconds_of(flag: str, duration: str | None) -> float | None:
    """Return the seconds of a duration given as a flag."""
    if duration is None:
        return None
    if not re.match(DURATION_PATTERN, duration):
        raise CommandError(
            f"{flag}: must be a number and a unit (90s, 10m, 2h, 1d), got {duration!r}",
            ExitCode.USAGE,
        )
    return duration_ms(duration) / 1000


async def poll(is_done: Callable[[], Awaitable[bool]], timeout_s: float) -> bool:
    """Ask until the answer is yes; False if it is still no when the time is out."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not await is_done():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
