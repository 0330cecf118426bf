"""Who may say what on which subject, and that no bytes from outside can hurt."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import codec, subjects
from broker.errors import CodecError
from broker.schemas.base import Input, Message, tag_of
from broker.schemas.command import StopRun
from broker.schemas.job import (
    JobCancelRequested,
    JobHoldRequested,
    JobRefused,
    JobReleaseRequested,
    JobSubmitted,
)
from broker.schemas.node import NodeCordonRequested, NodeJoined, NodeLost, NodeUncordonRequested
from broker.schemas.operator import ClockAdvanced, PackLimitChanged, SkewMeasured
from broker.schemas.run import RunExited, StopReason

INPUT_SUBJECTS = (
    subjects.job_request("ada", "submit"),
    subjects.job_request("ada", "cancel"),
    subjects.node_input("n1", "joined"),
    subjects.operator_input("ada", "cordon"),
    subjects.scheduler_input("clock_advanced"),
    subjects.profile_input("skew_measured"),
)


def test_a_submitted_job_belongs_to_the_user_of_the_subject():
    job = codec.decode_input(
        subjects.job_request("ada", "submit"), b'{"name": "hello", "run": ["python", "train.py"]}'
    )
    assert isinstance(job, JobSubmitted)
    assert (job.user, job.spec.name, job.spec.run) == ("ada", "hello", ("python", "train.py"))


def test_an_unreadable_job_is_refused_with_its_problems_and_never_lost():
    job = codec.decode_input(subjects.job_request("ada", "submit"), b'{"name": "x", "workers": 0}')
    assert isinstance(job, JobRefused)
    assert (job.user, job.name) == ("ada", "x")
    assert len(job.problems) >= 2


@pytest.mark.parametrize(
    ("verb", "request_type"),
    [
        ("cancel", JobCancelRequested),
        ("hold", JobHoldRequested),
        ("release", JobReleaseRequested),
    ],
)
def test_a_request_about_a_job_carries_the_user_of_the_subject_not_of_the_payload(
    verb, request_type
):
    payload = {"type": tag_of(request_type), "job_id": 7, "user": "mallory"}
    message = codec.decode_input(subjects.job_request("ada", verb), json.dumps(payload).encode())
    assert isinstance(message, request_type)
    assert (message.user, message.job_id) == ("ada", 7)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (subjects.node_input("n1", "joined"), NodeJoined(node="n1", boot_id="b", host="h")),
        (subjects.node_input("n1", "exited"), RunExited(node="n1", run_id="7-1")),
        (subjects.scheduler_input("clock_advanced"), ClockAdvanced()),
        (subjects.scheduler_input("lost"), NodeLost(node="n1", silent_ms=1)),
        (subjects.profile_input("skew"), SkewMeasured(job_id=7, skew=0.5)),
        (subjects.profile_input("pack_limit"), PackLimitChanged(pack_limit=0.5)),
    ],
)
def test_an_input_comes_back_as_it_was_sent(subject, message):
    assert codec.decode_input(subject, codec.encode(message)) == message


@pytest.mark.parametrize("request_type", [NodeCordonRequested, NodeUncordonRequested])
def test_an_operator_is_the_user_of_the_subject(request_type):
    message = request_type(node="n1", user="mallory")
    decoded = codec.decode_input(subjects.operator_input("ada", "cordon"), codec.encode(message))
    assert decoded.user == "ada"


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (subjects.node_input("n1", "exited"), RunExited(node="n2", run_id="7-1")),
        (subjects.node_input("n1", "joined"), NodeLost(node="n1", silent_ms=1)),
        (subjects.scheduler_input("lost"), RunExited(node="n1", run_id="7-1")),
        (subjects.profile_input("skew"), ClockAdvanced()),
        (subjects.operator_input("ada", "x"), ClockAdvanced()),
        (subjects.job_request("ada", "hold"), JobCancelRequested(job_id=7)),
    ],
)
def test_nobody_can_speak_for_somebody_else(subject, message):
    with pytest.raises(CodecError) as caught:
        codec.decode_input(subject, codec.encode(message))
    assert caught.value.subject == subject


@pytest.mark.parametrize(
    "subject",
    [
        "tiresias.v1.jobs.ada.destroy",
        "tiresias.v1.jobs.submit",
        "tiresias.v1.in.node.n1",
        "tiresias.v1.in.stranger.x",
        "tiresias.v1.hb.n1",
        "tiresias.v1",
        "",
    ],
)
def test_a_subject_that_is_no_input_is_refused(subject):
    with pytest.raises(CodecError, match="no such input subject"):
        codec.decode_input(subject, b"{}")


def test_outputs_are_read_by_their_tag_and_unknown_ones_refused():
    command = StopRun(node="n1", run_id="7-1", reason=StopReason.CANCEL, grace_ms=1, cause_seq=3)
    subject = subjects.command("n1", "stop_run")
    assert codec.decode_output(subject, codec.encode(command)) == command
    with pytest.raises(CodecError):
        codec.decode_output(subject, b'{"type": "cmd.unheard_of"}')


def test_fields_of_newer_versions_are_ignored():
    payload = b'{"type": "scheduler.clock_advanced", "from_the_future": [1]}'
    assert codec.decode_input(subjects.scheduler_input("clock"), payload) == ClockAdvanced()


def test_one_struct_is_read_or_refused_with_its_place():
    assert codec.decode(ClockAdvanced, codec.encode(ClockAdvanced())) == ClockAdvanced()
    with pytest.raises(CodecError, match=r"'here'.*skew"):
        codec.decode(
            SkewMeasured, b'{"type": "profile.skew_measured", "job_id": 1, "skew": 7}', "here"
        )


@pytest.mark.parametrize("subject", INPUT_SUBJECTS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[" * 100_000,
        b'{"type":' * 50_000,
        b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"name": "\xed\xa0\x80", "run": "x"}',
        b'{"job_id": 1e400}',
    ],
    ids=range(8),
)
def test_hostile_bytes_are_refused_quietly(subject, data):
    decoded = decode_or_none(subject, data)
    assert decoded is None or isinstance(decoded, JobRefused)


def test_a_number_of_a_job_that_cannot_exist_is_still_a_number():
    huge = 10**30
    data = json.dumps({"job_id": huge}).encode()
    assert codec.decode_input(subjects.job_request("ada", "cancel"), data).job_id == huge


def decode_or_none(subject, data):
    try:
        return codec.decode_input(subject, data)
    except CodecError:
        return None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
_TAGS = st.sampled_from(
    sorted(tag_of(each) for each in (JobCancelRequested, NodeJoined, RunExited))
)
_FIELDS = st.sampled_from(["node", "run_id", "job_id", "name", "run", "gpus", "tasks", "workers"])


_QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_QUICK
@given(st.sampled_from(INPUT_SUBJECTS), st.binary())
def test_random_bytes_raise_nothing_but_codec_errors(subject, data):
    decoded = decode_or_none(subject, data)
    assert decoded is None or isinstance(decoded, Input)


@_QUICK
@given(st.sampled_from(INPUT_SUBJECTS), _TAGS, st.dictionaries(_FIELDS, _JSON))
def test_random_fields_raise_nothing_but_codec_errors(subject, tag, fields):
    decoded = decode_or_none(subject, json.dumps({"type": tag, **fields}).encode())
    assert decoded is None or isinstance(decoded, Message)


@_QUICK
@given(st.text(), st.binary())
def test_random_subjects_raise_nothing_but_codec_errors(subject, data):
    assert decode_or_none(subject, data) is None or subject.split(".")[2:3] in (["jobs"], ["in"])
