"""Bad job requests: every problem at once, in plain words, nothing raised."""

import json

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import job_file
from broker.codec import decode_job_request
from broker.schemas.job import JobRefused, JobSpec, JobSubmitted

GOOD = {"name": "digits", "run": ["python", "train.py"]}


def refused(changes: object) -> dict[str, str]:
    value = {**GOOD, **changes} if isinstance(changes, dict) else changes
    message = decode_job_request("ann", json.dumps(value).encode())
    assert isinstance(message, JobRefused), message
    return {problem.path: problem.message for problem in message.problems}


def test_all_problems_are_told_at_once():
    problems = refused(
        {
            "gpu": 3,
            "workers": "two",
            "ps": -1,
            "gpus_per_worker": 0,
            "env": {"1A": "x", "B": 2},
            "grace": "10 minutes",
            "consolidate": "always",
            "restart": {"on_exit": [0]},
            "workdir": "here",
        }
    )
    assert problems == {
        "gpu": "unknown key; did you mean 'gpus_per_worker'?",
        "workers": "must be a whole number, got the text 'two'",
        "ps": "must be at least 0, got the number -1",
        "gpus_per_worker": "must be at least 1, got the number 0",
        "env.1A": "a name has only letters, digits and '_' and begins with no digit, got '1A'",
        "env.B": "must be text, got a number; put it in quotes if it is text",
        "grace": "must be a number and a unit (90s, 10m, 2h, 1d), got the text '10 minutes'",
        "consolidate": 'must be "prefer" or "require", got the text \'always\'',
        "restart.max": "is missing",
        "restart.on_exit[0]": "must be at least 1, got the number 0",
        "workdir": "must be an absolute path, got 'here'",
    }


def test_a_missing_key_is_named():
    problems = decode_job_request("ann", b"{}")
    assert isinstance(problems, JobRefused)
    assert [(p.path, p.message) for p in problems.problems] == [
        ("name", "is missing"),
        ("run", "is missing"),
    ]


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"workers": 10**9}, "workers", "must be at most 4096, got the number 1000000000"),
        ({"workers": 1.0}, "workers", "must be a whole number, got the number 1.0"),
        ({"workers": True}, "workers", "must be a whole number, got the value true"),
        (
            {"workers": 4096, "gpus_per_worker": 64},
            "workers",
            "workers * gpus_per_worker must be at most 16384, got 262144",
        ),
        ({"name": 7}, "name", "must be text, got the number 7; put it in quotes if it is text"),
        ({"name": "a\nb"}, "name", "must be printable and not blank"),
        ({"name": "  "}, "name", "must be printable and not blank"),
        ({"name": ""}, "name", "must not be empty"),
        ({"name": "n" * 200}, "name", "has 200 characters, the limit is 128"),
        ({"run": []}, "run", "must not be empty"),
        ({"run": ["", "x"]}, "run[0]", "the command must not be empty"),
        ({"run": 5}, "run", "must be text or a list, got a number; put it in quotes if it is text"),
        ({"run": ["a", "b\0"]}, "run[1]", "must not contain a NUL character"),
        ({"run": "a\0"}, "run", "must not contain a NUL character"),
        ({"run": ["a", "b" * 140_000]}, "run[1]", "has 140000 bytes, the limit is 131071"),
        ({"env": {"A": "b\0"}}, "env.A", "must not contain a NUL character"),
        ({"env": {"A": "é" * 70_000}}, "env.A", "has 140002 bytes, the limit is 131071"),
        ({"env": {"": "x"}}, "env.''", None),
        ({"env": ["A=1"]}, "env", "must be a map of keys and values, got a list"),
        ({"labels": {"": "x"}}, "labels.''", "a name must not be empty"),
        ({"time_limit": "0s"}, "time_limit", "must be above 0 and at most 3650d, got '0s'"),
        ({"time_limit": "9999d"}, "time_limit", "must be above 0 and at most 3650d, got '9999d'"),
        ({"grace": "2d"}, "grace", "must be at most 1d, got '2d'"),
        ({"version": 2}, "version", "must be 1, got the number 2"),
        ({"restart": None}, "restart", "must be a map of keys and values, got nothing"),
        ({"checkpoint": {"dir": "ckpt"}}, "checkpoint.dir", "must be an absolute path, got 'ckpt'"),
        ({"checkpoint": {"kep": 3}}, "checkpoint.kep", "unknown key; did you mean 'keep'?"),
        ({"maxRestarts": 3}, "maxRestarts", "unknown key; did you mean 'restart'?"),
        ({"wokers": 3}, "wokers", "unknown key; did you mean 'workers'?"),
        ([GOOD], "", "must be a map of keys and values, got a list"),
    ],
)
def test_each_rule_tells_the_value_and_the_limit(changes, path, message):
    problems = refused(changes)
    assert path in problems
    if message:
        assert problems[path] == message


def test_an_environment_too_large_names_the_limit():
    env = {f"V{i}": "x" * 4096 for i in range(300)}
    spec = JobSpec(name="a", run="true", env=env)
    assert [p.message for p in job_file.limit_problems(spec)] == [
        "has 1230190 bytes in all, the limit is 524288"
    ]


def test_a_request_too_large_for_a_message_names_the_limit():
    _, problems = job_file.problems_of(b" " * 2_000_000, "")
    assert "the limit is 1044480" in problems[0].message


def test_values_of_secrets_and_commands_are_never_repeated():
    text = str(refused({"env": {"TOKEN": 13371337}, "run": 13371337, "workers": "x"}))
    assert "13371337" not in text


def test_a_long_list_of_problems_is_cut():
    name, problems = job_file.problems_of(
        json.dumps({**GOOD, **{f"zzz{i}": i for i in range(80)}}).encode(), ""
    )
    assert name == "digits"
    assert len(problems) == job_file.MAX_PROBLEMS + 1
    assert problems[-1].message == "and 30 more problems"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"name":"\\ud800"}',
        b"[" * 100_000,
        b'{"name":' * 5000,
        b'{"name":"a","run":"b","x":' + b"[" * 950 + b"]" * 950 + b"}",
    ],
)
def test_what_is_no_sound_json_gives_one_clear_problem(data):
    message = decode_job_request("ann", data)
    assert isinstance(message, JobRefused)
    [problem] = message.problems
    assert problem.message.startswith("the request is")


def test_the_fast_paths_error_is_told_when_the_walk_finds_nothing():
    assert job_file.problems_of(json.dumps(GOOD).encode(), "odd")[1][0].message == "odd"


def test_lines_are_told_and_sort_the_problems():
    lines = {(): 1, ("ps",): 9, ("workers",): 4, ("restart",): 12}
    problems = job_file.validate_mapping(
        {**GOOD, "ps": -1, "workers": 0, "restart": {"max": -1}}, lines
    )
    assert [(p.path, p.line) for p in problems] == [("workers", 4), ("ps", 9), ("restart.max", 12)]


scalars = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        -1,
        64,
        65,
        10**12,
        1.0,
        0.5,
        "",
        "a",
        "/a",
        "60s",
        "2d",
        "a\0",
        "1 s",
        "require",
    ]
)
values = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(
        st.sampled_from(["max", "keep", "dir", "on_exit", "A", ""]), scalars, max_size=3
    )
)
KEYS = sorted(job_file.schema()["$defs"]["JobSpec"]["properties"])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*KEYS, "x"]), values, max_size=3))
def test_fast_path_and_slow_path_agree_on_what_is_valid(changes):
    data = msgspec.json.encode({**GOOD, **changes})
    problems = job_file.validate_mapping(msgspec.json.decode(data), {})
    assert isinstance(decode_job_request("ann", data), JobRefused if problems else JobSubmitted)


def test_the_schema_is_itself_valid():
    jsonschema.Draft202012Validator.check_schema(job_file.schema())
