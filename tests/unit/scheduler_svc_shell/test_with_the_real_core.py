"""The shell and the real core together: every crash and every restart ends in the same log."""

import json

import pytest

from broker import codec, subjects
from broker.errors import BusUnavailableError
from broker.schemas.node import GpuInfo, NodeJoined
from broker.schemas.run import InventoryReported, RunExited, RunPrepared, RunStarted, TaskExit
from broker.topology import INPUT
from scheduler_svc.core.scheduler import Scheduler
from tests.unit.scheduler_svc_shell.rig import FaultyBus
from tests.unit.scheduler_svc_shell.test_recovery import job_decisions

FIRST, SECOND = 3, 4
RUN = f"{FIRST}-1"


def node_report(kind, message_type, **fields):
    message = message_type(node="n1", **fields)
    return subjects.node_input("n1", kind), codec.encode(message)


def job_request(verb, **fields):
    return subjects.job_request("ada", verb), json.dumps(fields).encode()


GPU = GpuInfo(gpu_id="g0", index=0)
STORY = [
    node_report("joined", NodeJoined, boot_id="b", host="127.0.0.1", gpus=(GPU,)),
    node_report("inventory_reported", InventoryReported, boot_id="b"),
    job_request("submit", name="first", run="true"),
    job_request("submit", name="second", run="true"),
    node_report("prepared", RunPrepared, run_id=RUN, ports={}),
    node_report("started", RunStarted, run_id=RUN, pids={"worker-0": 7}),
    job_request("cancel", type="job.cancel_requested", job_id=SECOND),
    node_report(
        "exited", RunExited, run_id=RUN, tasks=(TaskExit(task="worker-0", rank=0, exit_code=0),)
    ),
    job_request("submit", name="third", run="true"),
]


@pytest.fixture
async def rig(rig):
    rig.core_type = Scheduler
    return rig


async def tell(rig):
    for subject, data in STORY:
        await rig.client.append(subject, data)


def expected(rig):
    """What one fold of the whole log decides."""
    core = Scheduler(is_checked=True)
    outputs = []
    for message in rig.stored(INPUT):
        outputs += core.handle(
            message.seq, codec.decode_input(message.subject, message.data), message.at_ms
        )
    return {output.output_id: output for output in outputs}


def reference_count():
    """How many outputs the story has, for the choice of crash points."""
    core = Scheduler()
    return sum(
        len(core.handle(seq, codec.decode_input(*message), 1_000))
        for seq, message in enumerate(STORY, start=1)
    )


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("fail_at", range(reference_count()))
async def test_a_crash_at_any_append_ends_in_the_log_of_one_fold(rig, fail_at, is_stored):
    await tell(rig)
    with pytest.raises(BusUnavailableError):
        await rig.service(FaultyBus(rig.server, fail_at=fail_at, stored=is_stored)).run(None)
    async with rig.leading():
        await rig.settle()
    assert job_decisions(rig) == expected(rig)
    assert rig.metric("divergences_total") == 0


@pytest.mark.parametrize("is_clean", [False, True])
async def test_a_restart_after_every_input_ends_in_the_log_of_one_fold(rig, is_clean, caplog):
    for subject, data in STORY:
        await rig.client.append(subject, data)
        if is_clean:
            async with rig.leading():
                await rig.settle()
        else:
            await rig.killed()
    assert job_decisions(rig) == expected(rig)
    assert "failed" not in caplog.text
    assert rig.metric("divergences_total") == 0
