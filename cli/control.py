"""`tiresias cancel`, `hold` and `release`: each returns when it is true, or says why not.

Asking twice is harmless and gets the same answer.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated

import typer

from broker.schemas.base import Input
from broker.schemas.job import JobCancelRequested, JobHoldRequested, JobReleaseRequested
from broker.schemas.views import JobState, JobView
from cli import client, output
from cli.client import Client
from cli.exit_codes import ExitCode
from cli.options import JobsArgument, NatsOption
from cli.waiting import outcome_line, seconds_of

DEFAULT_TIMEOUT = "120s"
TimeoutOption = Annotated[
    str, typer.Option(metavar="120s", help="How long to wait until it is done.")
]


def cancel(
    jobs: JobsArgument,
    *,
    force: Annotated[bool, typer.Option("--force", help="Kill at once, without grace.")] = False,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    nats: NatsOption = None,
) -> None:
    """Stop jobs for good; returns when they have ended.

    Examples:
      tiresias cancel 7 8
      tiresias cancel --force digits
    """
    _act(
        nats,
        jobs,
        verb="cancel",
        request=lambda job_id: JobCancelRequested(job_id=job_id, force=force),
        is_done=lambda view: view.state is JobState.CANCELLED,
        timeout=timeout,
    )


def hold(
    jobs: JobsArgument, timeout: TimeoutOption = DEFAULT_TIMEOUT, nats: NatsOption = None
) -> None:
    """Keep jobs from running until they are released.

    A running one saves and stops.

    Example:
      tiresias hold 7
    """
    _act(
        nats,
        jobs,
        verb="hold",
        request=lambda job_id: JobHoldRequested(job_id=job_id),
        is_done=lambda view: view.state is JobState.HELD,
        timeout=timeout,
    )


def release(
    jobs: JobsArgument, timeout: TimeoutOption = DEFAULT_TIMEOUT, nats: NatsOption = None
) -> None:
    """Let held jobs run again.

    Example:
      tiresias release 7
    """
    _act(
        nats,
        jobs,
        verb="release",
        request=lambda job_id: JobReleaseRequested(job_id=job_id),
        is_done=lambda view: view.state is not JobState.HELD and not view.state.is_terminal,
        timeout=timeout,
    )


def _act(
    nats: str | None,
    jobs: list[str],
    *,
    verb: str,
    request: Callable[[int], Input],
    is_done: Callable[[JobView], bool],
    timeout: str,
) -> None:
    timeout_s = seconds_of("--timeout", timeout)

    async def one(peer: Client, view: JobView) -> ExitCode:
        if not view.state.is_terminal and not is_done(view):
            await peer.request(verb, request(view.job_id))
            try:
                view = await peer.wait_until(
                    view.job_id,
                    lambda now: now.state.is_terminal or is_done(now),
                    timeout_s=timeout_s,
                )
            except TimeoutError:
                now = await peer.job(str(view.job_id))
                output.print_error(
                    f"job {now.job_id} is still {now.state} after {timeout}; "
                    f"the request to {verb} it is stored and stays in force"
                )
                return ExitCode.WAIT_RAN_OUT
        return _told(verb, view, is_right=is_done(view))

    async def body(peer: Client) -> list[ExitCode]:
        views = [await peer.job(reference) for reference in jobs]
        return await asyncio.gather(*(one(peer, view) for view in views))

    codes = client.run(nats, body)
    raise typer.Exit(max(codes))


def _told(verb: str, view: JobView, *, is_right: bool) -> ExitCode:
    if is_right:
        output.print_lines([outcome_line(view)])
        return ExitCode.DONE
    output.print_error(f"cannot {verb}: {outcome_line(view)}")
    return ExitCode.WRONG_STATE
