"""`submit`, `validate`, `schema`: what is sent, and what is refused before anything is sent."""

import json

import pytest

from broker.codec import decode_input
from broker.schemas.job import JobSubmitted
from tests.unit.cli.support import call

SUBJECT = "tiresias.v1.jobs.ada.submit"


def test_a_command_becomes_a_job_in_this_folder(cluster, tmp_path, capsys):
    assert call("submit", "--gpus", 2, "-e", "LR=0.1", "--", "python", "train.py", "--fast") == 0
    [(subject, request, _)] = cluster.inputs()
    assert subject == SUBJECT
    assert request == {
        "name": "train.py",
        "run": ["python", "train.py", "--fast"],
        "gpus_per_worker": 2,
        "env": {"LR": "0.1"},
        "workdir": str(tmp_path),
    }
    out = capsys.readouterr().out
    assert "job 1 submitted: train.py (1 worker x 2 GPUs)" in out
    assert out.count("tiresias ") == 3


def test_what_is_sent_is_what_the_scheduler_reads(cluster):
    call("submit", "--workers", 2, "--max-restarts", 3, "--label", "team=vision", "--", "x")
    [(subject, request, _)] = cluster.inputs()
    message = decode_input(subject, json.dumps(request).encode())
    assert isinstance(message, JobSubmitted)
    assert (message.user, message.spec.workers, message.spec.restart.max) == ("ada", 2, 3)
    assert message.spec.labels == {"team": "vision"}


def test_a_file_with_two_jobs_makes_two(cluster, tmp_path, capsys):
    (tmp_path / "jobs.yaml").write_text("name: a\nrun: x\n---\nname: b\nrun: y\n")
    assert call("submit", "-q", "jobs.yaml") == 0
    assert [request["name"] for _, request, _ in cluster.inputs()] == ["a", "b"]
    assert capsys.readouterr().out == "1\n2\n"


def test_flags_win_over_the_file(cluster, tmp_path):
    (tmp_path / "job.yaml").write_text("name: a\nrun: x\nworkers: 2\nps: 1\n")
    assert call("submit", "job.yaml", "--workers", 3, "-n", "wide") == 0
    [(_, request, _)] = cluster.inputs()
    assert (request["name"], request["workers"], request["ps"]) == ("wide", 3, 1)


def test_gpus_in_all_are_shared_by_the_workers(cluster, capsys):
    assert call("submit", "--gpus", 8, "--workers", 2, "--", "x") == 0
    assert cluster.inputs()[0][1]["gpus_per_worker"] == 4
    assert call("submit", "--gpus", 7, "--workers", 2, "--", "x") == 2
    assert call("submit", "--gpus", 7, "--gpus-per-worker", 2, "--", "x") == 2
    assert len(cluster.inputs()) == 1


def test_env_files_and_variables_of_ones_own(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "here")
    (tmp_path / "env").write_text("# secret\nA=1=2\n\nB=x\n")
    assert call("submit", "--env-file", "env", "-e", "B=y", "-e", "MINE", "--", "x") == 0
    assert cluster.inputs()[0][1]["env"] == {"A": "1=2", "B": "y", "MINE": "here"}


def test_every_byte_of_a_large_environment_arrives_or_is_refused(cluster, tmp_path, capsys):
    odd = "\"'$\\ \t 🚀 実験" * 60
    lines = "".join(f"V{i}={odd}\n" for i in range(300))
    (tmp_path / "env").write_text(lines)
    assert call("submit", "--env-file", "env", "-n", "実験", "--", "x") == 0
    assert set(cluster.inputs()[0][1]["env"].values()) == {odd}
    (tmp_path / "env").write_text("".join(f"V{i}={'x' * 4096}\n" for i in range(300)))
    assert call("submit", "--env-file", "env", "--", "x") == 2
    assert "the limit is 524288" in capsys.readouterr().err


def test_a_long_script_arrives_whole(cluster, tmp_path):
    script = "echo $A\n" * 25_000
    body = "".join(f"  {line}\n" for line in script.splitlines())
    (tmp_path / "job.yaml").write_text(f"name: a\nrun: |\n{body}")
    assert call("submit", "job.yaml") == 0
    assert cluster.inputs()[0][1]["run"] == script


def test_the_same_key_gives_the_same_job(cluster, capsys):
    assert [call("submit", "-q", "--key", "k", "--", "x") for _ in range(3)] == [0, 0, 0]
    assert capsys.readouterr().out == "1\n1\n1\n"
    [(_, _, message_id)] = cluster.inputs()
    assert message_id == "ada/k"


def test_the_same_key_for_another_job_is_a_conflict(cluster, capsys):
    call("submit", "--key", "k", "--", "x")
    assert call("submit", "--key", "k", "--", "y") == 4
    assert "key 'k' was already used for another job, number 1" in capsys.readouterr().err
    assert len(cluster.inputs()) == 1


def test_submissions_without_a_key_are_different_jobs(cluster):
    call("submit", "--", "x")
    call("submit", "--", "x")
    assert len({message_id for _, _, message_id in cluster.inputs()}) == 2


def test_a_dry_run_sends_nothing(cluster, capsys):
    assert call("submit", "--dry-run", "--workers", 2, "--", "x") == 0
    assert json.loads(capsys.readouterr().out)[0]["workers"] == 2
    assert cluster.inputs() == []


@pytest.mark.parametrize(
    "lines",
    [
        "gpu: 1",
        "\tps: 1",
        "name: again",
        "env: [A]",
        "workers: two",
        "workers: -1",
        "workers: 0",
        "workers: 1000000000",
    ],
)
def test_a_bad_file_exits_2_and_sends_nothing(cluster, tmp_path, capsys, lines):
    (tmp_path / "good.yaml").write_text("name: a\nrun: x\n")
    (tmp_path / "bad.yaml").write_text(f"name: a\nrun: x\n{lines}\n")
    assert call("submit", "good.yaml", "bad.yaml") == 2
    assert "bad.yaml:3: " in capsys.readouterr().err
    assert cluster.inputs() == []


def test_the_problems_of_all_files_are_told(cluster, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("name: a\n")
    (tmp_path / "b.yaml").write_bytes(b"\xff")
    assert call("validate", "a.yaml", "b.yaml") == 2
    err = capsys.readouterr().err
    assert "a.yaml:1: run: is missing" in err
    assert "b.yaml:1: not UTF-8" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["submit", "--workers", "two", "--", "x"], "'--workers'"),
        (["submit", "--workers", "0", "--", "x"], "--workers: must be at least 1"),
        (["submit", "--ps", "-1", "--", "x"], "--ps: must be at least 0"),
        (["submit", "--time-limit", "soon", "--", "x"], "--time-limit: must be a number and"),
        (["submit", "--max-restarts", "9999", "--", "x"], "--max-restarts: must be at most"),
        (["submit", "-e", "1A=x", "--", "x"], "--env 1A: a name has only"),
        (["submit", "-e", "NOT_SET_ANYWHERE", "--", "x"], "is not set here"),
        (["submit", "--label", "x", "--", "x"], "--label: 'x' has no value"),
        (["submit", "--env-file", "nowhere", "--", "x"], "--env-file: cannot read"),
        (["submit", "nowhere.yaml"], "write it after '--'"),
        (["submit"], "nothing to submit"),
        (["submit", "a.yaml", "--", "x"], "not both"),
        (["submit", "--", ""], "command: the command must not be empty"),
        (["submit", "--nope", "--", "x"], "no such option"),
    ],
)
def test_bad_usage_exits_2_with_the_reason_and_sends_nothing(cluster, capsys, arguments, text):
    assert call(*arguments) == 2
    err = capsys.readouterr().err
    assert text.lower() in err.lower()
    assert "Traceback" not in err
    assert cluster.inputs() == []


def test_valid_files_are_told_valid(cluster, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("name: a\nrun: x\nps: 1\nworkers: 2\n")
    assert call("validate", "a.yaml") == 0
    out = capsys.readouterr().out
    assert out == "a: valid, 2 workers x 1 GPU and 1 parameter server\n"
    assert call("validate", "a.yaml", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "a"


def test_the_schema_is_printed_as_json(capsys):
    assert call("schema") == 0
    assert "JobSpec" in json.loads(capsys.readouterr().out)["$defs"]


def test_a_server_that_is_not_there_is_told_with_the_remedy(monkeypatch, capsys):
    async def refused(url):
        raise OSError

    monkeypatch.setattr("cli.client.open_bus", refused)
    assert call("submit", "--", "x") == 6
    assert "'tiresias up'" in capsys.readouterr().err
