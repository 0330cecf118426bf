"""The launcher's variables, TF_CONFIG or nothing: each gives a sound description."""

import json
from pathlib import Path

import pytest

from tiresias.environment import read_environment
from tiresias.errors import EnvironmentVariableError

LAUNCHED = {
    "TIRESIAS_RUN_ID": "7-2",
    "TIRESIAS_ATTEMPT": "2",
    "TIRESIAS_ROLE": "worker",
    "TIRESIAS_INDEX": "1",
    "TIRESIAS_RANK": "1",
    "TIRESIAS_WORLD_SIZE": "2",
    "TIRESIAS_CHECKPOINT_DIR": "/saves/7",
    "TIRESIAS_CHECKPOINT_KEEP": "3",
    "TIRESIAS_GRACE_MS": "5000",
    "TIRESIAS_SOCKET": "/run/job.sock",
}


def test_the_launchers_variables_are_read():
    environment = read_environment(LAUNCHED, checkpoint_dir="elsewhere")
    assert not environment.is_offline
    assert environment.task == "worker-1"
    assert (environment.saving_rank, environment.saving_ranks) == (1, 2)
    assert environment.checkpoint_dir == Path("/saves/7")
    assert environment.checkpoint_every_steps is None
    assert (environment.checkpoint_keep, environment.grace_ms) == (3, 5000)
    assert environment.socket == Path("/run/job.sock")
    assert environment.write_token == "7-2"


def test_the_chief_saves_alone():
    environment = read_environment({**LAUNCHED, "TIRESIAS_ROLE": "chief", "TIRESIAS_RANK": "2"})
    assert (environment.saving_rank, environment.saving_ranks) == (0, 1)


def test_without_variables_the_run_is_offline():
    environment = read_environment({})
    assert environment.is_offline
    assert environment.checkpoint_dir == Path("checkpoints")
    assert environment.socket is None
    assert environment.write_token != read_environment({}).write_token


def test_offline_the_script_chooses_folder_and_frequency(tmp_path):
    variables = {"TIRESIAS_CHECKPOINT_EVERY_STEPS": "50"}
    environment = read_environment(variables, checkpoint_dir=tmp_path)
    assert environment.checkpoint_dir == tmp_path
    assert environment.checkpoint_every_steps == 50


def test_an_offline_gang_knows_its_shape_from_tf_config():
    cluster = {"worker": ["a:1", "b:1"]}
    gang = [
        read_environment(
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})}
        )
        for i in (0, 1)
    ]
    assert [(task.saving_rank, task.saving_ranks) for task in gang] == [(0, 2), (1, 2)]
    assert gang[0].write_token == gang[1].write_token


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIRESIAS_RANK", "one"),
        ("TIRESIAS_RANK", "-1"),
        ("TIRESIAS_WORLD_SIZE", "0"),
        ("TIRESIAS_CHECKPOINT_EVERY_STEPS", "0"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(name, value):
    with pytest.raises(EnvironmentVariableError, match=f"{name} is '{value}'"):
        read_environment({**LAUNCHED, name: value})


@pytest.mark.parametrize("text", ["{", "[]", '{"cluster": {}}', '{"cluster": [], "task": {}}'])
def test_a_tf_config_that_cannot_be_read_is_named(text):
    with pytest.raises(EnvironmentVariableError, match="TF_CONFIG"):
        read_environment({"TF_CONFIG": text})
