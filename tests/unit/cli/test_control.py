"""`cancel`, `hold`, `release`, `wait`: return when it is true, and say how it came out."""

import json

import msgspec
import pytest

from broker.schemas.views import JobState
from tests.unit.cli.support import call, job


def becomes(state, **more):
    """A scheduler that puts a job into this state when asked about it."""

    def change(view, request):
        return msgspec.structs.replace(view, state=state, **more)

    return change


def test_cancel_returns_when_the_job_is_cancelled(cluster, capsys):
    cluster.put_job(job(7))
    cluster.on_request("cancel", becomes(JobState.CANCELLED))
    assert call("cancel", "digits") == 0
    assert "job 7 digits: CANCELLED" in capsys.readouterr().out
    [(subject, request, _)] = cluster.inputs()
    assert (subject, request["job_id"]) == ("tiresias.v1.jobs.ada.cancel", 7)
    assert not request.get("force")


def test_a_second_cancel_gives_the_same_answer_and_sends_nothing(cluster, capsys):
    cluster.put_job(job(7))
    cluster.on_request("cancel", becomes(JobState.CANCELLED))
    assert call("cancel", 7) == 0
    first = capsys.readouterr().out
    assert call("cancel", 7) == 0
    assert capsys.readouterr().out == first
    assert len(cluster.inputs()) == 1


def test_force_is_passed_on(cluster):
    cluster.put_job(job(7))
    cluster.on_request("cancel", becomes(JobState.CANCELLED))
    assert call("cancel", "--force", 7) == 0
    assert cluster.inputs()[0][1]["force"] is True


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT])
def test_a_job_that_has_ended_cannot_be_cancelled(cluster, capsys, state):
    cluster.put_job(job(7, state=state))
    assert call("cancel", 7) == 4
    assert f"cannot cancel: job 7 digits: {state}" in capsys.readouterr().err
    assert cluster.inputs() == []


def test_a_job_that_ends_well_before_the_cancel_arrives_is_told(cluster, capsys):
    cluster.put_job(job(7))
    cluster.on_request("cancel", becomes(JobState.SUCCEEDED))
    assert call("cancel", 7) == 4
    assert "SUCCEEDED" in capsys.readouterr().err


def test_a_cancel_that_takes_long_says_so(cluster, capsys):
    cluster.put_job(job(7))
    cluster.on_request("cancel", becomes(JobState.STOPPING))
    assert call("cancel", 7, "--timeout", "50ms") == 7
    err = capsys.readouterr().err
    assert "job 7 is still STOPPING after 50ms" in err
    assert "stays in force" in err


def test_one_wrong_name_cancels_nothing(cluster):
    cluster.put_job(job(7))
    assert call("cancel", 7, "nowhere") == 3
    assert cluster.inputs() == []


def test_several_jobs_end_with_the_worst_code(cluster, capsys):
    cluster.put_job(job(7))
    cluster.put_job(job(8, state=JobState.SUCCEEDED))
    cluster.on_request("cancel", becomes(JobState.CANCELLED))
    assert call("cancel", 7, 8) == 4
    captured = capsys.readouterr()
    assert "job 7 digits: CANCELLED" in captured.out
    assert "cannot cancel: job 8" in captured.err


def test_hold_and_release(cluster, capsys):
    cluster.put_job(job(7, state=JobState.QUEUED))
    cluster.on_request("hold", becomes(JobState.HELD))
    cluster.on_request("release", becomes(JobState.QUEUED))
    assert call("hold", 7) == 0
    assert call("hold", 7) == 0
    assert call("release", 7) == 0
    assert call("release", 7) == 0
    assert [subject.split(".")[-1] for subject, _, _ in cluster.inputs()] == ["hold", "release"]
    cluster.put_job(job(7, state=JobState.FAILED))
    assert call("hold", 7) == 4
    assert call("release", 7) == 4


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (JobState.SUCCEEDED, 0),
        (JobState.FAILED, 100),
        (JobState.REJECTED, 100),
        (JobState.CANCELLED, 101),
        (JobState.TIMED_OUT, 102),
    ],
)
def test_wait_ends_with_the_outcome(cluster, capsys, state, code):
    cluster.put_job(job(7, state=state, message="because"))
    assert call("wait", 7) == code
    assert capsys.readouterr().out == f"job 7 digits: {state}: because\n"


def test_waiting_for_several_tells_the_worst(cluster):
    cluster.put_job(job(7, state=JobState.SUCCEEDED))
    cluster.put_job(job(8, state=JobState.CANCELLED))
    assert call("wait", 7, 8) == 101
    cluster.put_job(job(9, state=JobState.FAILED))
    assert call("wait", 7, 8, 9) == 100


def test_a_wait_that_runs_out_exits_7(cluster, capsys):
    cluster.put_job(job(7, state=JobState.QUEUED))
    assert call("wait", 7, "--timeout", "50ms") == 7
    assert "the jobs go on" in capsys.readouterr().err
    assert call("wait", 7, "--timeout", "soon") == 2


def test_the_jobs_own_code_can_be_passed_through(cluster):
    cluster.put_job(job(7, state=JobState.FAILED, exit_code=3))
    assert call("wait", 7, "--pass-code") == 3
    cluster.put_job(job(7, state=JobState.FAILED, signal=11))
    assert call("wait", 7, "--pass-code") == 100


def test_wait_prints_json(cluster, capsys):
    cluster.put_job(job(7, state=JobState.SUCCEEDED))
    assert call("wait", 7, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "SUCCEEDED"


def test_submit_can_wait_for_its_job(cluster, capsys, monkeypatch):
    cluster.put_job(job(1, state=JobState.FAILED))
    assert call("submit", "--wait", "--", "x") == 100
