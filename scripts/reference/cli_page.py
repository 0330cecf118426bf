"""cli.md: every command of `tiresias` with its arguments and options."""

from enum import Enum
from typing import Any

import typer

from cli.main import app
from scripts.reference.markdown import code, page, table

INTRODUCTION = """\
`tiresias COMMAND --help` prints the same. What the commands end with: [exit codes](exit-codes.md).
The server is found in this order: `--nats URL`, `$TIRESIAS_NATS`, the one that `tiresias up`
started here, `nats://127.0.0.1:4222`."""


def cli_page() -> str:
    """One section a command, in the order of ``--help``."""
    root: Any = typer.main.get_command(app)
    return page("Commands", INTRODUCTION, *_sections("tiresias", root))


def _sections(path: str, group: Any) -> list[str]:
    sections = []
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            sections += _sections(f"{path} {name}", command)
        else:
            sections.append(_section(f"{path} {name}", command))
    return sections


def _section(path: str, command: Any) -> str:
    arguments = [_argument(p) for p in command.params if p.param_type_name == "argument"]
    options = [_row(p) for p in command.params if p.param_type_name == "option" and not p.hidden]
    about, _, examples = (command.help or "").replace("\b\n", "").partition("Example")
    example_lines = [line.strip() for line in examples.partition(":\n")[2].splitlines()]
    blocks = [
        f"## `{path}`",
        "\n\n".join(" ".join(part.split()) for part in about.strip().split("\n\n")),
        f"```sh\n{' '.join([path, '[OPTIONS]' if options else '', *arguments]).strip()}\n```",
        table(("option", "meaning"), options) if options else "",
        "```sh\n" + "\n".join(example_lines) + "\n```" if example_lines else "",
    ]
    return "\n\n".join(block for block in blocks if block)


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _row(option: Any) -> tuple[str, str]:
    names = ", ".join(sorted(option.opts, key=len, reverse=True))
    kind = "" if option.is_flag else (option.metavar or _choices(option) or option.name.upper())
    default = ""
    if not option.is_flag and isinstance(option.default, str | int | float) and option.default:
        default = f" Default: `{getattr(option.default, 'value', option.default)}`."
    return code(f"{names} {kind}".strip()), f"{option.help or ''}{default}"


def _choices(option: Any) -> str:
    kind = option.type_descriptor.annotation
    is_closed_list = isinstance(kind, type) and issubclass(kind, Enum)
    return "|".join(member.value for member in kind) if is_closed_list else ""
