"""Options from flags and files: one name each, flags win, every mistake names its key."""

import json
from pathlib import Path

import pytest

from broker.schemas.operator import Settings
from scheduler_svc.__main__ import config_of, parser
from scheduler_svc.config import (
    ConfigError,
    Options,
    SchedulerConfig,
    parse_options,
    read_options,
)


def config(*flags: str) -> SchedulerConfig:
    return config_of(parser().parse_args(["--state-dir", "state", *flags]))


def test_flags_become_settings_in_the_units_of_the_core():
    given = config(
        "--queue-limits=3600,7200.5",
        "--queue-order=start_time",
        "--policy=fifo",
        "--promote-knob=8",
        "--promote-floor=4h",
        "--consolidate=require",
        "--preempt-exempt=90s",
        "--launch-limit=2m",
        "--restart-backoff=500ms",
        "--pack-limit=0.5",
    )
    assert given.settings_for(Settings()) == Settings(
        policy="fifo",
        queue_limits_gpu_ms=(3_600_000, 7_200_500),
        queue_order="start_time",
        promote_knob=8.0,
        promote_floor_ms=4 * 3_600_000,
        pack_limit=0.5,
        consolidate="require",
        preempt_exempt_ms=90_000,
        launch_limit_ms=120_000,
        restart_backoff_ms=500,
    )


def test_what_is_not_said_goes_back_to_its_default():
    assert config().settings_for(Settings(policy="fifo", promote_knob=2.0)) == Settings()


def test_a_fitted_pack_limit_outlives_a_restart_unless_another_is_set():
    fitted = Settings(pack_limit=0.7)
    assert config().settings_for(fitted).pack_limit == 0.7
    assert config("--pack-limit=0.2").settings_for(fitted).pack_limit == 0.2


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("o.toml", 'queue_limits = [10, 20]\npromote_knob = "off"\npolicy = "fifo"\n'),
        ("o.json", json.dumps({"queue_limits": [10, 20], "promote_knob": "off", "policy": "fifo"})),
    ],
)
def test_flags_win_over_the_file(tmp_path, name, text):
    given = config("--config", write(tmp_path / name, text), "--queue-limits=5")
    settings = given.settings_for(Settings(promote_knob=3.0))
    assert settings.queue_limits_gpu_ms == (5_000,)
    assert settings.promote_knob is None
    assert settings.policy == "fifo"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"queue_limits": "a,b"}, "queue_limits"),
        ({"queue_limits": ""}, "queue_limits"),
        ({"queue_limits": "nan"}, "queue_limits"),
        ({"queue_limits": "inf"}, "queue_limits"),
        ({"queue_limits": "5,5"}, "queue_limits"),
        ({"queue_limits": "0"}, "queue_limits"),
        ({"policy": "best"}, "policy"),
        ({"promote_knob": "-1"}, "promote_knob"),
        ({"promote_knob": "often"}, "promote_knob"),
        ({"pack_limit": "2"}, "pack_limit"),
        ({"preempt_exempt": "60"}, "preempt_exempt"),
        ({"launch_limit": "0s"}, "launch_limit"),
    ],
)
def test_a_wrong_flag_is_named(flags, named):
    with pytest.raises(ConfigError, match=named):
        parse_options(flags).settings(Settings())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("o.toml", "queue_limit = [1]\n"),
        ("o.toml", "= broken"),
        ("o.json", "{"),
        ("o.json", '{"policy": 3}'),
        ("o.toml", "\udcff"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=name):
        read_options(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nothing-here"):
        read_options(tmp_path / "nothing-here.toml")


def test_wrong_settings_are_refused_before_the_service_starts():
    with pytest.raises(ConfigError, match="ascend"):
        SchedulerConfig(nats_url="", state_dir=Path(), options=Options(queue_limits=(2.0, 1.0)))


def test_nodes_cannot_be_lost_before_they_are_silent():
    with pytest.raises(ConfigError, match="lost_after_ms"):
        config("--suspect-after-ms=6000", "--lost-after-ms=7000")


def test_a_wrong_command_line_ends_with_2(capsys, monkeypatch):
    from scheduler_svc.__main__ import main

    monkeypatch.setattr("sys.argv", ["x", "--state-dir", "s", "--policy", "best"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "policy" in capsys.readouterr().err
