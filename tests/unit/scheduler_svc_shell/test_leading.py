"""What a leading scheduler does with inputs, settings, time and other leaders."""

import asyncio
import json

import pytest

from broker import codec, subjects
from broker.errors import BusError, BusUnavailableError, FencedError
from broker.schemas.api import ApiError
from broker.schemas.base import Output
from broker.schemas.fact import NodeUp
from broker.schemas.operator import LeaderRecord
from broker.schemas.views import Explanation, JobState
from broker.topology import DEAD, INPUT
from scheduler_svc import dead_letters
from scheduler_svc.config import Options
from scheduler_svc.dead_letters import DeadLetter
from scheduler_svc.decision_log import subject_of
from scheduler_svc.fold import CoreFailedError
from tests.unit.scheduler_svc_shell.rig import FaultyBus
from tests.unit.scheduler_svc_shell.toy_core import BOOM, DEADLINE_MS, ToyCore


async def test_outputs_carry_their_id_their_epoch_and_their_subject(rig):
    async with rig.leading():
        job_id = await rig.submit()
        await rig.settle()
    fact, command = rig.decisions()
    assert [fact.message_id, command.message_id] == [f"{job_id}.0", f"{job_id}.1"]
    assert fact.subject == subjects.job_fact(job_id, "queued")
    assert command.subject == subjects.command("n1", "prepare_run")
    assert codec.decode_output(command.subject, command.data).epoch == rig.epochs()[0]


def test_only_commands_and_facts_have_a_subject():
    with pytest.raises(TypeError, match="Output"):
        subject_of(Output())


async def test_outputs_of_waiting_inputs_keep_their_order(rig):
    seqs = [await rig.submit(f"job-{number}") for number in range(600)]
    async with rig.leading():
        seqs += [await rig.submit(f"job-{number}") for number in range(600)]
        await rig.settle()
    expected = [f"{seq}.{index}" for seq in seqs for index in (0, 1)]
    assert [message.message_id for message in rig.decisions()] == expected


async def test_the_leader_record_opens_the_term(rig):
    async with rig.leading(instance="s1"):
        pass
    record = codec.decode(LeaderRecord, rig.stored("TIRESIAS_DECISIONS")[0].data)
    assert (record.instance, record.input_seq) == ("s1", 0)


async def test_views_follow_the_decisions(rig):
    async with rig.leading():
        job_id = await rig.submit("view me")
        await rig.settle()
        assert (await rig.job_view(job_id)).state is JobState.QUEUED
        await rig.cancel(job_id)
        await rig.settle()
        assert (await rig.job_view(job_id)).state is JobState.CANCELLED


async def test_unwritable_views_delay_no_decision_and_are_written_later(rig):
    class NoViews(FaultyBus):
        down = True

        async def kv_put(self, bucket, key, data):
            if self.down:
                raise BusUnavailableError("no answer in time")
            return await super().kv_put(bucket, key, data)

    bus = NoViews(rig.server)
    async with rig.leading(bus):
        job_id = await rig.submit()
        await rig.settle()
        assert len(rig.decisions()) == 2
        assert await rig.job_view(job_id) is None
        bus.down = False
        await rig.clock.advance_ms(500)
        await rig.settle()
        assert await rig.job_view(job_id) is not None


async def test_an_unreadable_input_is_put_aside_whole_and_the_next_is_handled(rig):
    async with rig.leading():
        subject = subjects.job_request("ada", "cancel")
        bad_seq = (await rig.client.append(subject, b"\xff{")).seq
        await rig.submit()
        await rig.settle()
    (letter,) = [codec.decode(DeadLetter, message.data) for message in rig.stored(DEAD)]
    assert (letter.input_seq, letter.subject, letter.data) == (bad_seq, subject, b"\xff{")
    assert letter.error
    assert len(rig.decisions()) == 2
    assert rig.metric("dead_letters_total") == 1


async def test_a_source_whose_name_fits_no_subject_is_put_aside(rig):
    async with rig.leading():
        for subject in ("tiresias.v1.in.node.N1.joined", "tiresias.v1.jobs.Ada.submit"):
            await rig.client.append(subject, b"{}")
        await rig.settle()
    assert len(rig.stored(DEAD)) == 2


async def test_a_decision_that_no_message_holds_stops_nothing(rig, caplog):
    class Wordy(ToyCore):
        def _act(self, seq, message):
            outputs = super()._act(seq, message)
            too_long = "x" * 2**20
            return [
                *outputs,
                NodeUp(node="Bad Name", gpus=0),
                NodeUp(node="n", gpus=0, problem=too_long),
            ]

    rig.core_type = Wordy
    async with rig.leading():
        for _ in range(2):
            await rig.submit()
            await rig.settle()
        assert rig.metric("unsayable_outputs") == 4
    assert len(rig.decisions()) == 4
    assert "decision left out" in caplog.text


async def test_a_refused_view_stops_nothing(rig, caplog):
    class NoRoom(FaultyBus):
        async def kv_put(self, bucket, key, data):
            raise BusError("too large")

    async with rig.leading(NoRoom(rig.server)) as running:
        await rig.submit()
        await rig.settle()
        assert not running.done()
    assert "view dropped" in caplog.text


async def test_a_stop_does_not_wait_for_views_that_cannot_be_written(rig, monkeypatch, caplog):
    class NoViews(FaultyBus):
        async def kv_put(self, bucket, key, data):
            raise BusUnavailableError("no answer in time")

    monkeypatch.setattr("scheduler_svc.term.PUT_ASIDE_S", 0.01)
    async with rig.leading(NoViews(rig.server)):
        await rig.submit()
        await rig.settle()
    assert "before the last views were written" in caplog.text


async def test_a_job_request_that_is_no_job_is_rejected_with_its_reasons(rig):
    async with rig.leading():
        await rig.client.append(subjects.job_request("ada", "submit"), b'{"name": 3}')
        await rig.settle()
    (fact,) = rig.decisions()
    assert json.loads(fact.data)["problems"]
    assert rig.stored(DEAD) == []


async def test_a_newer_leader_ends_the_older_one(rig):
    older = asyncio.create_task(rig.service().run(asyncio.Event()))
    await rig.settle()
    older_metrics = rig.metrics
    async with rig.leading():
        job_id = await rig.submit()
        await rig.settle()
        assert older.done()
        assert isinstance(older.exception(), FencedError)
    ids = [message.message_id for message in rig.decisions()]
    assert ids == [f"{job_id}.0", f"{job_id}.1"]
    assert older_metrics.registry.get_sample_value(
        "tiresias_step_downs_total", {"reason": "FencedError"}
    )


def clock_inputs(rig):
    return [m for m in rig.stored(INPUT) if m.subject == subjects.scheduler_input("clock")]


async def test_a_deadline_is_told_once_when_it_is_due(rig):
    async with rig.leading():
        await rig.submit()
        await rig.clock.advance_ms(DEADLINE_MS - 1)
        await rig.settle()
        assert clock_inputs(rig) == []
        await rig.clock.advance_ms(1)
        await rig.settle()
        await rig.clock.advance_ms(10 * DEADLINE_MS)
        await rig.settle()
    (advanced,) = clock_inputs(rig)
    due_ms = advanced.at_ms
    assert advanced.message_id == f"clock/{due_ms}/{rig.epochs()[0]}"
    assert rig.decisions()[-1].subject.endswith(".demoted")


async def test_an_earlier_deadline_is_not_missed_while_a_later_one_is_awaited(rig):
    async with rig.leading():
        late = await rig.submit()
        await rig.clock.advance_ms(DEADLINE_MS // 2)
        early = await rig.submit()
        await rig.settle()
        await rig.cancel(late)
        await rig.clock.advance_ms(DEADLINE_MS)
        await rig.settle()
    assert rig.decisions()[-1].subject == subjects.job_fact(early, "demoted")


async def test_a_deadline_reached_during_the_downtime_is_told_at_once(rig):
    await rig.submit()
    await rig.killed()
    await rig.clock.advance_ms(5 * DEADLINE_MS)
    async with rig.leading():
        pass
    assert rig.decisions()[-1].subject.endswith(".demoted")


async def test_a_log_clock_behind_ours_gets_another_message(rig):
    rig.server_clock.behind_ms = 300
    async with rig.leading():
        await rig.submit()
        rig.server_clock.behind_ms = 600
        await rig.clock.advance_ms(DEADLINE_MS)
        await rig.settle()
        await rig.clock.advance_ms(300)
        await rig.settle()
    ids = [message.message_id for message in clock_inputs(rig)]
    assert ids == [ids[0], f"{ids[0]}/1"]
    assert rig.decisions()[-1].subject.endswith(".demoted")


async def test_settings_of_the_configuration_reach_the_core_once(rig):
    rig.options = Options(queue_limits=(10.0,))
    for _ in range(2):
        async with rig.leading():
            await rig.settle()
    settings = [m for m in rig.stored(INPUT) if m.subject == subjects.scheduler_input("settings")]
    assert len(settings) == 1
    assert json.loads(settings[0].data)["settings"]["queue_limits_gpu_ms"] == [10_000]


async def explained(rig, data):
    return await rig.client.request(subjects.api("explain"), data)


async def test_an_active_job_is_explained(rig):
    async with rig.leading():
        job_id = await rig.submit()
        await rig.settle()
        answer = await explained(rig, json.dumps({"job_id": job_id}).encode())
        assert codec.decode(Explanation, answer).job_id == job_id


@pytest.mark.parametrize("request_data", [b"", b"{}", b'{"job_id": "x"}', b'{"job_id": 77}'])
async def test_a_request_that_cannot_be_explained_gets_a_reason(rig, request_data):
    async with rig.leading():
        assert codec.decode(ApiError, await explained(rig, request_data)).message


async def test_launchers_are_asked_for_their_inventory(rig):
    asked = []

    async def note(message):
        asked.append(message.data)

    await rig.client.subscribe(subjects.INVENTORY, note)
    async with rig.leading():
        await rig.settle()
    assert asked == [b""]


async def test_an_input_the_core_fails_on_from_every_start_is_left_out_from_then_on(rig):
    await rig.submit("first")
    service = asyncio.create_task(rig.service().run(asyncio.Event()))
    await rig.settle()
    bad_seq = await rig.submit(BOOM)
    good_seq = await rig.submit("after")
    await rig.settle()
    assert isinstance(service.exception(), CoreFailedError)
    assert rig.stored(DEAD) == []
    with pytest.raises(CoreFailedError):
        await rig.service().run(asyncio.Event())
    (letter,) = rig.stored(DEAD)
    assert letter.subject == dead_letters.CORE_FAILED
    assert codec.decode(DeadLetter, letter.data).input_seq == bad_seq
    async with rig.leading() as running:
        assert not running.done()
    ids = [message.message_id for message in rig.decisions()]
    assert f"{good_seq}.1" in ids
    assert not any(output_id.startswith(f"{bad_seq}.") for output_id in ids)


async def test_a_state_the_core_cannot_go_on_from_gives_way_to_an_older_one(rig):
    class Forgetful(ToyCore):
        """Its snapshots are of no use: every input after them fails."""

        @classmethod
        def restore(cls, data):
            core = super().restore(data)
            core.handle = None
            return core

    rig.core_type = Forgetful
    async with rig.leading():
        seqs = [await rig.submit()]
        await rig.settle()
    service = asyncio.create_task(rig.service().run(asyncio.Event()))
    await rig.settle()
    seqs.append(await rig.submit())
    await rig.settle()
    assert service.done()
    async with rig.leading():
        await rig.settle()
    assert rig.stored(DEAD) == []
    assert {m.message_id for m in rig.decisions()} >= {f"{s}.{i}" for s in seqs for i in (0, 1)}


async def test_metrics_tell_jobs_inputs_and_latency(rig):
    async with rig.leading():
        job_id = await rig.submit()
        await rig.submit()
        await rig.settle()
        assert rig.metric("jobs", state="QUEUED") == 2
        assert rig.metric("queue_jobs", queue="0") == 2
        await rig.cancel(job_id)
        await rig.settle()
        assert rig.metric("jobs", state="QUEUED") == 1
        assert rig.metric("ended_jobs_total", state="CANCELLED") == 1
        assert rig.metric("inputs_total", type="job.submitted") == 2
        assert rig.metric("outputs_total", type="cmd.prepare_run") == 2
        assert rig.metric("decision_latency_seconds_count") == 3
