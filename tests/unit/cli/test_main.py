"""The command line as a whole: help, one-line errors, simulated GPUs of `up`."""

import json
import re

import pytest
import typer

from cli import main, up
from cli.exit_codes import CommandError
from tests.unit.cli.support import call

COMMANDS = [
    *(["up"], ["demo"], ["submit"], ["validate"], ["schema"], ["ls"], ["show"], ["why"]),
    *(["logs"], ["wait"], ["cancel"], ["hold"], ["release"], ["doctor"]),
    *(["node", "ls"], ["node", "show"], ["node", "cordon"], ["node", "uncordon"]),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(command, capsys):
    assert call(*command, "--help") == 0
    out = capsys.readouterr().out
    assert re.search(r"(?m)^  +(tiresias .*|job\.yaml:3: .*)$", out)


def test_the_list_of_commands_is_complete(capsys):
    assert call("--help") == 0
    out = capsys.readouterr().out
    assert all(f"\n  {command[0]} " in out for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments", [["nope"], ["ls", "--nope"], ["show"], ["ls", "-o", "xml"], ["node", "show"]]
)
def test_bad_usage_is_one_line_and_exit_2(arguments, capsys):
    assert call(*arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tiresias: ")
    assert "--help" in line


@pytest.mark.parametrize("arguments", [[], ["node"]])
def test_without_a_command_the_help_is_shown(arguments, capsys):
    assert call(*arguments) == 2
    assert capsys.readouterr().out.startswith("Usage: tiresias")


def test_ctrl_c_ends_with_130_and_no_trace(cluster, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.jobs.client.run", interrupt)
    assert call("ls") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_the_entry_point_ends_with_the_code(monkeypatch):
    monkeypatch.setattr("sys.argv", ["tiresias", "show"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2


def test_click_is_found_wherever_typer_keeps_it():
    assert main.ClickError.__name__ == "ClickException"
    assert issubclass(typer.BadParameter, main.ClickError)


def test_up_simulates_gpus_where_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setattr(up, "DRIVER", tmp_path / "none")
    assert up._simulated_gpus(None, 2, real_gpus=False) == up.DEFAULT_SIMULATED_GPUS
    assert up._simulated_gpus(0, 1, real_gpus=False) == 0
    assert up._simulated_gpus(None, 1, real_gpus=True) is None


def test_up_takes_real_gpus_once(monkeypatch, tmp_path):
    monkeypatch.setattr(up, "DRIVER", tmp_path)
    assert up._simulated_gpus(None, 1, real_gpus=False) is None
    assert up._simulated_gpus(None, 2, real_gpus=False) == up.DEFAULT_SIMULATED_GPUS
    for gpus, nodes in ((4, 1), (None, 2)):
        with pytest.raises(CommandError):
            up._simulated_gpus(gpus, nodes, real_gpus=True)


def test_the_demo_says_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("cli.demo_jobs.EXAMPLES", tmp_path)
    assert call("demo") == 1
    assert "clone it" in capsys.readouterr().err


def test_the_schema_can_be_used_by_an_editor(capsys):
    assert call("schema") == 0
    assert json.loads(capsys.readouterr().out)["$schema"].endswith("2020-12/schema")
