"""The command `tiresias`: registers the commands, and turns every error into a line and a code.

Starting is quick: commands load NATS, YAML and rich only when they need them.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from broker.errors import TiresiasError
from cli import (
    control,
    demo,
    doctor,
    jobs,
    logs,
    nodes,
    output,
    submit,
    up,
    waiting,
)
from cli.exit_codes import ExitCode, of_error

_KEEP_LINES = "\b"
"""Click's mark before a paragraph that is not to be wrapped."""
ClickError: type[Any] = typer.BadParameter.__mro__[2]
"""The root of usage errors, wherever the installed typer keeps its click."""

app = typer.Typer(
    name="tiresias",
    help="Schedule deep learning jobs on GPUs, without being told how long they run.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
node_app = typer.Typer(help="Look at nodes, and take them out of use.", no_args_is_help=True)


def _register(parent: typer.Typer, function: Callable[..., None], name: str, **more: Any) -> None:
    parent.command(name, help=_help(function), **more)(function)


def _help(function: Callable[..., None]) -> str:
    """Return a docstring whose indented blocks keep their lines."""
    text = inspect.getdoc(function) or ""
    return re.sub(r"(?m)^(?=\S[^\n]*\n +\S)", f"{_KEEP_LINES}\n", text)


_register(app, up.up, "up")
_register(app, demo.demo, "demo")
_register(app, submit.submit, "submit", cls=submit.SubmitCommand)
_register(app, submit.validate, "validate")
_register(app, submit.schema, "schema")
_register(app, jobs.ls, "ls")
_register(app, jobs.ls, "queue", hidden=True)
_register(app, jobs.show, "show")
_register(app, jobs.show, "describe", hidden=True)
_register(app, jobs.why, "why")
_register(app, logs.logs, "logs")
_register(app, waiting.wait, "wait")
_register(app, control.cancel, "cancel")
_register(app, control.hold, "hold")
_register(app, control.release, "release")
_register(app, doctor.doctor, "doctor")
_register(node_app, nodes.ls, "ls")
_register(node_app, nodes.show, "show")
_register(node_app, nodes.cordon, "cordon")
_register(node_app, nodes.uncordon, "uncordon")
app.add_typer(node_app, name="node")


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = app(args=list(arguments), prog_name="tiresias", standalone_mode=False)
    except TiresiasError as error:
        output.print_error(str(error))
        return of_error(error)
    except ClickError as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        ignore_output()
        return ExitCode.DONE
    return code if isinstance(code, int) else ExitCode.DONE


def ignore_output() -> None:
    """Send what is still buffered nowhere: its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "tiresias"
    message = error.format_message().rstrip(".")
    if message.startswith("Usage:"):
        output.print_lines([message])
    else:
        output.print_error(f"{message} (see '{command} --help')")
    return int(error.exit_code)


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
