"""The command line."""

import argparse
from pathlib import Path

import pytest

from launcher import __main__ as launcher_main

REQUIRED = ["--node=n1", "--state-dir=s", "--run-dir=r", "--checkpoint-root=c"]


def config_of(*options: str):
    return launcher_main._config(launcher_main._parser().parse_args([*REQUIRED, *options]))


def test_folders_become_absolute_and_defaults_hold(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = config_of()
    assert config.state_dir == tmp_path / "s"
    assert (config.first_port, config.last_port) == (20_000, 29_999)
    assert (config.on_exit, config.lease_ms) == ("leave", 30_000)


def test_options_are_taken_over():
    config = config_of("--ports=1000-2000", "--on-exit=stop", "--lease-ms=500")
    assert (config.first_port, config.last_port) == (1_000, 2_000)
    assert (config.on_exit, config.lease_ms) == ("stop", 500)


@pytest.mark.parametrize("text", ["", "1", "2-1", "0-5", "1-70000", "a-b"])
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="no range of ports"):
        launcher_main._ports(text)


def test_one_launcher_per_state_folder(tmp_path):
    import os

    lock = launcher_main._lock(tmp_path / "state")
    with pytest.raises(launcher_main.LauncherBusyError, match=f"process {os.getpid()}"):
        launcher_main._lock(Path(tmp_path / "state"))
    os.close(lock)
