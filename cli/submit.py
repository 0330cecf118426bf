"""`tiresias submit`, `validate` and `schema`. Nothing is sent unless every job is valid."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from broker import job_file
from broker.schemas.job import JobSpec
from cli import client, job_flags, output
from cli.client import Client
from cli.exit_codes import CommandError, ExitCode
from cli.follow import follow_jobs, leaving_jobs_running
from cli.options import NatsOption, OutputOption
from cli.output import Format, counted
from cli.waiting import exit_as_jobs, wait_for_jobs

_COMMAND = "tiresias.command"


class SubmitCommand(TyperCommand):
    """Keeps what follows ``--`` as the job's command, whatever it looks like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Cut the line at the first ``--`` before options are read."""
        own, command = args, []
        if "--" in args:
            place = args.index("--")
            own, command = args[:place], args[place + 1 :]
        ctx.meta[_COMMAND] = command
        return super().parse_args(ctx, own)


def submit(
    context: typer.Context,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE...]", help="Job files; '-' is stdin.")
    ] = None,
    *,
    name: job_flags.Name = None,
    workers: job_flags.Workers = None,
    gpus_per_worker: job_flags.GpusPerWorker = None,
    gpus: job_flags.Gpus = None,
    ps: job_flags.ParameterServers = None,
    env: job_flags.Environment = None,
    env_file: job_flags.EnvironmentFile = None,
    workdir: job_flags.Workdir = None,
    time_limit: job_flags.TimeLimit = None,
    grace: job_flags.Grace = None,
    max_restarts: job_flags.MaxRestarts = None,
    consolidate: job_flags.Consolidate = None,
    label: job_flags.Label = None,
    key: Annotated[
        str, typer.Option(help="A repetition under the same key gives the same job.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, print, send nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all have ended.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show the output to the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the number.")] = False,
    form: OutputOption = Format.TABLE,
    nats: NatsOption = None,
) -> None:
    """Submit jobs: from files, or a command after '--'.

    Examples:
      tiresias submit job.yaml
      tiresias submit --gpus 1 -- python train.py --epochs 3
      tiresias submit -n wide --workers 2 --gpus-per-worker 4 --follow -- python train.py
    """
    flags = job_flags.mapping(
        gpus=gpus, env=env, env_file=env_file, max_restarts=max_restarts, label=label,
        name=name, workers=workers, gpus_per_worker=gpus_per_worker, ps=ps, workdir=workdir,
        time_limit=time_limit, grace=grace, consolidate=consolidate,
    )  # fmt: skip
    specs = job_flags.specs_of(files or [], context.meta[_COMMAND], flags)
    requests = [_request(spec) for spec in specs]
    if dry_run:
        output.print_json([msgspec.json.decode(request) for request in requests])
        return
    job_ids = client.run(nats, lambda peer: _send(peer, requests, key))
    _tell(job_ids, specs, Format.NAME if quiet else form)
    with leaving_jobs_running(job_ids):
        if follow:
            exit_as_jobs(client.run(nats, lambda peer: follow_jobs(peer, job_ids)))
        elif wait:
            exit_as_jobs(client.run(nats, lambda peer: wait_for_jobs(peer, job_ids, None)))


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Job files; '-' is stdin.")],
    form: OutputOption = Format.TABLE,
) -> None:
    """Check job files as the scheduler will, and send nothing.

    Exit code 2 tells that a file is not valid. Every problem is printed as
      job.yaml:3: workers: must be at least 1, got the number 0
    """
    specs = job_flags.read_files(files)
    for spec in specs:
        _request(spec)
    if form is Format.JSON:
        output.print_json([job_flags.keys_of(spec) for spec in specs])
    else:
        output.print_lines(f"{spec.name}: valid, {_gang(spec)}" for spec in specs)


def schema() -> None:
    """Print the JSON schema of the job file, for editors.

    Example, and the line that makes editors use it:
      tiresias schema > job.schema.json
      # yaml-language-server: $schema=job.schema.json
    """
    output.print_json(job_file.schema())


async def _send(peer: Client, requests: Sequence[bytes], key: str) -> list[int]:
    """Send the requests in order; with several, each has a key of its own."""
    job_ids = []
    for index, request in enumerate(requests):
        own_key = f"{key}/{index}" if key and len(requests) > 1 else key
        job_ids.append((await peer.submit(request, own_key)).seq)
    return job_ids


def _request(spec: JobSpec) -> bytes:
    """Return the JSON of a request; raises if no server would take it."""
    request = msgspec.json.encode(job_flags.keys_of(spec))
    if len(request) > job_file.MAX_REQUEST_BYTES:
        problem = job_file.size_problem(len(request))
        raise CommandError(f"{spec.name}: {problem.message}", ExitCode.USAGE)
    return request


def _gang(spec: JobSpec) -> str:
    servers = f" and {counted(spec.ps, 'parameter server')}" if spec.ps else ""
    return f"{counted(spec.workers, 'worker')} x {counted(spec.gpus_per_worker, 'GPU')}{servers}"


def _tell(job_ids: Sequence[int], specs: Sequence[JobSpec], form: Format) -> None:
    if form is Format.NAME:
        output.print_lines(str(job_id) for job_id in job_ids)
    elif form is Format.JSON:
        pairs = zip(job_ids, specs, strict=True)
        output.print_json([{"job_id": job_id, "name": spec.name} for job_id, spec in pairs])
    else:
        for job_id, spec in zip(job_ids, specs, strict=True):
            output.print_lines([f"job {job_id} submitted: {spec.name} ({_gang(spec)})"])
        first = job_ids[0]
        output.print_lines(
            [
                f"  tiresias logs -f {first}   its output (Ctrl-C does not stop the job)",
                f"  tiresias show {first}      state, attempts, preemptions",
                f"  tiresias cancel {first}    stop it",
            ]
        )
