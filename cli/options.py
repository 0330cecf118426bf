"""Options and arguments that several commands share."""

from typing import Annotated

import typer

from cli.output import Format

NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats",
        envvar="TIRESIAS_NATS",
        metavar="URL",
        help="Server to talk to; default: the one that 'tiresias up' started.",
    ),
]
OutputOption = Annotated[Format, typer.Option("--output", "-o", help="How to print the result.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Number or name of a job.")]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Numbers or names of jobs.")
]
