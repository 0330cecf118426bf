"""settings.md: everything that can be set: what decides, and the flags of each service."""

import argparse
from collections.abc import Callable

import launcher.__main__ as launcher_line
import node_agent.__main__ as agent_line
import scheduler_svc.__main__ as scheduler_line
from broker.schemas.operator import Settings
from scripts.reference.markdown import code, field_table, page, table
from scripts.reference.structs import docstring_of

SERVICES: tuple[tuple[str, Callable[[], argparse.ArgumentParser]], ...] = (
    ("scheduler_svc", scheduler_line.parser),
    ("node_agent", agent_line.parser),
    ("launcher", launcher_line._parser),  # noqa: SLF001 - the line of a program, not an interface
)
DECISIONS = """\
Give them to the scheduler as flags or in a file (`--config`, TOML or JSON), in people's units:
limits in GPU-seconds (`queue_limits`), times as durations (`preempt_exempt = "60s"`). What they
become is a message of the input log, so that a replay knows them:"""
FLAGS = """\
Each service is started with `python -P -m NAME`. `--nats` defaults to `$TIRESIAS_NATS`, else to
`nats://127.0.0.1:4222`; the agent's `--node` to the name of the machine. An agent and a launcher of
one node share `--node` and `--run-dir`."""


def settings_page() -> str:
    """The settings of decisions, then the flags of each service."""
    return page(
        "Settings",
        "## Decisions",
        docstring_of(Settings),
        DECISIONS,
        field_table(Settings),
        "## Services",
        FLAGS,
        *(_flags(name, make()) for name, make in SERVICES),
    )


def _flags(name: str, parser: argparse.ArgumentParser) -> str:
    actions = [action for action in parser._actions if action.dest != "help"]  # noqa: SLF001
    return f"### {name}\n\n" + table(("flag", "default", "meaning"), [_row(a) for a in actions])


def _row(action: argparse.Action) -> tuple[str, str, str]:
    names = "/".join(map(str, action.choices)) if action.choices else action.metavar
    flag = code(f"{action.option_strings[0]} {names or ''}".rstrip())
    if action.required:
        return flag, "**required**", action.help or ""
    return flag, code(_default(action)), action.help or ""


def _default(action: argparse.Action) -> str:
    """The default where it is the same on every machine."""
    if isinstance(action.default, tuple):
        return "-".join(map(str, action.default))
    is_fixed = isinstance(action.default, int) or action.choices or action.dest == "log_level"
    return str(action.default) if is_fixed else ""
