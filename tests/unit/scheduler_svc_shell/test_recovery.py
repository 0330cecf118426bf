"""After a crash at any point nothing is lost, nothing is doubled, and the fold is the same."""

import asyncio
import logging

import msgspec
import pytest

from broker import codec, subjects
from broker.errors import BusUnavailableError, FencedError
from broker.memory_bus import MemoryBus
from broker.schemas.command import Command
from broker.schemas.fact import JobQueued
from broker.schemas.views import JobState
from broker.topology import DEAD, DECISIONS, INPUT
from scheduler_svc.fold import CoreFailedError
from scheduler_svc.recovery import MAX_CORE_FAILURES, RecoveryError
from scheduler_svc.snapshots import Snapshot, pack, unpack
from tests.unit.scheduler_svc_shell.rig import FaultyBus
from tests.unit.scheduler_svc_shell.toy_core import BOOM, ToyCore

BEYOND_DUPLICATE_WINDOW_MS = 3_600_000
JOBS = 3
OUTPUTS = 2 * JOBS


def job_decisions(rig):
    """What was decided about submissions: message id -> bytes without the epoch."""
    found = [message for message in rig.decisions() if not message.subject.endswith(".demoted")]
    contents = {}
    for message in found:
        output = codec.decode_output(message.subject, message.data)
        if isinstance(output, Command):
            output = msgspec.structs.replace(output, epoch=0)
        contents[message.message_id] = output
    assert len(contents) == len(found), "an output is recorded twice"
    return contents


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("fail_at", range(OUTPUTS))
@pytest.mark.parametrize("downtime_ms", [0, BEYOND_DUPLICATE_WINDOW_MS])
async def test_a_crash_at_any_append_loses_and_doubles_nothing(
    rig, fail_at, is_stored, downtime_ms
):
    seqs = [await rig.submit(f"job-{number}") for number in range(JOBS)]
    with pytest.raises(BusUnavailableError):
        await rig.service(FaultyBus(rig.server, fail_at=fail_at, stored=is_stored)).run(None)
    recorded = set(job_decisions(rig))
    assert len(recorded) == fail_at + is_stored
    await rig.clock.advance_ms(downtime_ms)

    healthy = FaultyBus(rig.server)
    async with rig.leading(healthy):
        await rig.settle()
    decided = job_decisions(rig)
    assert list(decided) == [f"{seq}.{index}" for seq in seqs for index in (0, 1)]
    assert recorded.isdisjoint(healthy.appended), "a recorded output was sent again"
    assert rig.metric("divergences_total") == 0


async def test_a_crash_after_a_snapshot_continues_from_it(rig):
    async with rig.leading():
        first = await rig.submit("before")
        await rig.settle()
    second = await rig.submit("after")
    with pytest.raises(BusUnavailableError):
        await rig.service(FaultyBus(rig.server, fail_at=1)).run(None)
    healthy = FaultyBus(rig.server)
    async with rig.leading(healthy):
        await rig.settle()
    assert list(job_decisions(rig)) == [f"{s}.{i}" for s in (first, second) for i in (0, 1)]
    assert healthy.appended == [f"{second}.1"]


async def test_recovery_folds_to_the_same_state_with_and_without_snapshots(rig):
    async with rig.leading(snapshot_every_inputs=2):
        for number in range(7):
            job_id = await rig.submit(f"job-{number}")
            await rig.clock.advance_ms(300)
            await rig.settle()
        await rig.cancel(job_id)
        await rig.settle()
    newest = unpack(max((rig.state_dir / "snapshots").glob("*.bin")).read_bytes())
    core = ToyCore()
    for message in rig.stored(INPUT):
        core.handle(message.seq, codec.decode_input(message.subject, message.data), message.at_ms)
    assert core.snapshot() == newest.core
    assert newest.input_seq == rig.server.streams[INPUT].state.last_seq


async def test_a_leader_that_died_idle_leaves_nothing_to_append(rig):
    await rig.submit()
    await rig.killed()
    healthy = FaultyBus(rig.server)
    async with rig.leading(healthy):
        pass
    assert healthy.appended == []


async def test_what_an_older_leader_decides_during_our_claim_is_seen(rig):
    class SlowClaim(FaultyBus):
        async def claim_leadership(self, data, *, message_id):
            await rig.submit("meanwhile")
            await rig.settle()
            return await super().claim_leadership(data, message_id=message_id)

    older = asyncio.create_task(rig.service().run(asyncio.Event()))
    await rig.settle()
    newer = SlowClaim(rig.server)
    async with rig.leading(newer):
        assert len(job_decisions(rig)) == 2
    assert newer.appended == []
    older.cancel()
    await asyncio.gather(older, return_exceptions=True)


async def test_a_lost_race_for_leadership_ends_the_start(rig):
    class Beaten(MemoryBus):
        async def claim_leadership(self, data, *, message_id):
            raise FencedError(1)

    with pytest.raises(FencedError):
        await rig.service(Beaten(rig.server)).run(None)


async def test_the_last_view_of_a_job_that_ended_before_the_crash_is_written(rig):
    class NoViews(FaultyBus):
        async def kv_put(self, bucket, key, data):
            raise BusUnavailableError("no answer in time")

    job_id = await rig.submit()
    await rig.cancel(job_id)
    await rig.killed(NoViews(rig.server), snapshot_every_inputs=1)
    assert await rig.job_view(job_id) is None
    async with rig.leading():
        await rig.settle()
        assert (await rig.job_view(job_id)).state is JobState.CANCELLED


async def test_views_lost_on_the_server_are_written_again(rig):
    job_id = await rig.submit()
    async with rig.leading():
        await rig.settle()
    await rig.client.kv_delete("tiresias_jobs", str(job_id))
    async with rig.leading():
        await rig.settle()
        assert await rig.job_view(job_id) is not None


async def test_a_dead_letter_is_written_once_however_often_the_log_is_folded(rig):
    await rig.client.append(subjects.job_request("ada", "cancel"), b"no json")
    for _ in range(3):
        await rig.killed()
        await rig.clock.advance_ms(BEYOND_DUPLICATE_WINDOW_MS)
    await rig.client.append(subjects.job_request("ada", "hold"), b"no json either")
    await rig.killed()
    assert len(rig.stored(DEAD)) == 2


class OtherCore(ToyCore):
    """A version that decides otherwise: no command, and other numbers."""

    def _act(self, seq, message):
        outputs = super()._act(seq, message)[:1]
        return [
            msgspec.structs.replace(output, queue_index=5)
            if isinstance(output, JobQueued)
            else output
            for output in outputs
        ]


async def test_decisions_that_differ_from_the_record_are_counted_not_sent(rig, caplog):
    await rig.submit()
    await rig.killed()
    rig.core_type = OtherCore
    healthy = FaultyBus(rig.server)
    async with rig.leading(healthy):
        assert rig.metric("divergences_total") == 2
    assert healthy.appended == []
    assert "differs" in caplog.text
    assert "not decided again" in caplog.text


async def test_a_recorded_decision_nobody_can_read_is_not_sent_again(rig):
    job_id = await rig.submit()
    epoch = await rig.client.claim_leadership(b"{}", message_id="old")
    await rig.client.append(
        subjects.job_fact(job_id, "queued"), b"?", message_id=f"{job_id}.0", epoch=epoch
    )
    healthy = FaultyBus(rig.server)
    async with rig.leading(healthy):
        assert rig.metric("divergences_total") == 1
    assert healthy.appended == [f"{job_id}.1"]


async def test_a_decision_recorded_twice_is_counted(rig):
    await rig.submit()
    await rig.killed()
    await rig.clock.advance_ms(BEYOND_DUPLICATE_WINDOW_MS)
    first = rig.decisions()[0]
    await rig.client.append(first.subject, first.data, message_id=first.message_id)
    async with rig.leading():
        assert rig.metric("divergences_total") == 1


def snapshot_files(rig):
    return sorted((rig.state_dir / "snapshots").glob("snapshot-*.bin"))


async def several_snapshots(rig, count=4):
    for number in range(count):
        await rig.submit(f"job-{number}")
        async with rig.leading():
            await rig.settle()


async def test_three_snapshots_are_kept_on_disk_and_in_the_bucket(rig):
    await several_snapshots(rig, 5)
    assert [int(path.stem.split("-")[1]) for path in snapshot_files(rig)] == [3, 4, 5]
    in_bucket = [unpack(data).input_seq for data in rig.server.objects.values()]
    assert sorted(in_bucket) == [3, 4, 5]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in snapshot_files(rig))
    assert snapshot_files(rig)[0].parent.stat().st_mode & 0o777 == 0o700


async def test_no_snapshot_is_written_where_nothing_is_new(rig):
    await several_snapshots(rig, 1)
    before = snapshot_files(rig)[0].stat().st_mtime_ns
    async with rig.leading():
        pass
    assert snapshot_files(rig)[0].stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:60] + b"X" + data[61:],
        lambda data: b"",
        lambda data: b"tiresias-snapshot 99 0\n",
        lambda data: pack(msgspec.structs.replace(unpack(data), core=b"no core")),
    ],
)
async def test_a_damaged_snapshot_gives_way_to_an_older_one(rig, caplog, damage):
    await several_snapshots(rig)
    rig.server.objects.clear()
    newest = snapshot_files(rig)[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    caplog.set_level(logging.INFO)
    async with rig.leading():
        await rig.submit()
        await rig.settle()
    assert "snapshot skipped" in caplog.text
    recovered = [record for record in caplog.records if record.message == "recovered"]
    assert recovered[-1].snapshot == 3
    assert len(job_decisions(rig)) == 10


async def test_places_that_cannot_be_read_are_skipped(rig, caplog):
    class NoObjects(MemoryBus):
        async def object_get(self, bucket, name):
            raise BusUnavailableError("no answer in time")

    await several_snapshots(rig, 1)
    (rig.state_dir / "snapshots" / f"snapshot-{9:020d}.bin").mkdir()
    caplog.set_level(logging.INFO)
    async with rig.leading(NoObjects(rig.server)):
        pass
    assert [r.snapshot for r in caplog.records if r.message == "recovered"] == [1]


async def test_without_local_files_the_bucket_is_used(rig, caplog):
    await several_snapshots(rig)
    for path in snapshot_files(rig):
        path.unlink()
    caplog.set_level(logging.INFO)
    async with rig.leading():
        pass
    recovered = [record for record in caplog.records if record.message == "recovered"]
    assert recovered[-1].snapshot == 4


async def test_snapshots_of_a_log_that_was_started_anew_are_not_used(rig, tmp_path):
    await several_snapshots(rig)
    other = type(rig)(rig.state_dir)
    await other.clock.advance_ms(1_000)
    async with other.leading():
        first = await other.submit()
        await other.settle()
    assert list(job_decisions(other)) == [f"{first}.0", f"{first}.1"]
    for _ in range(6):
        await other.submit()
    (rig.state_dir / "snapshots" / f"snapshot-{1:020d}.bin").unlink()
    other.server.objects.clear()
    await other.killed()
    assert len(job_decisions(other)) == 14
    assert other.metric("divergences_total") == 0


async def test_inputs_that_are_gone_without_a_snapshot_stop_the_start(rig):
    await rig.submit()
    await rig.submit()
    rig.server.streams[INPUT]._remove(1)
    with pytest.raises(RecoveryError, match="first inputs are gone"):
        await rig.service().run(None)


async def test_numbers_of_inputs_the_server_lost_are_not_given_again(rig, caplog):
    await rig.submit()
    lost_seqs = [await rig.submit(), await rig.submit()]
    await rig.killed()
    inputs = rig.server.streams[INPUT]
    for seq in lost_seqs:
        inputs._remove(seq)
    inputs._last_seq = lost_seqs[0] - 1
    async with rig.leading():
        assert "the input log lost its end" in caplog.text
        assert rig.metric("divergences_total") == 4
        new_seq = await rig.submit()
        await rig.settle()
    assert new_seq == lost_seqs[-1] + 1
    assert rig.decisions()[-1].message_id == f"{new_seq}.1"


async def test_inputs_purged_below_a_snapshot_are_not_missed(rig):
    await several_snapshots(rig, 2)
    await rig.submit()
    rig.server.streams[INPUT]._remove(1)
    rig.server.streams[INPUT]._remove(2)
    await rig.killed()
    assert len(job_decisions(rig)) == 6


async def test_a_core_that_fails_again_and_again_needs_a_person(rig):
    for _ in range(MAX_CORE_FAILURES + 2):
        await rig.submit(BOOM)
    for _ in range(MAX_CORE_FAILURES + 1):
        with pytest.raises(CoreFailedError):
            await rig.service().run(None)
    with pytest.raises(RecoveryError, match="more than"):
        await rig.service().run(None)


async def test_snapshots_are_taken_while_leading(rig):
    async with rig.leading(snapshot_every_inputs=2, snapshot_every_ms=60_000):
        await rig.submit()
        await rig.submit()
        await rig.settle()
        assert len(snapshot_files(rig)) == 1
        await rig.submit()
        await rig.settle()
        assert len(snapshot_files(rig)) == 1
        await rig.clock.advance_ms(60_000)
        await rig.submit()
        await rig.settle()
        assert len(snapshot_files(rig)) == 2


async def test_a_snapshot_that_cannot_be_written_stops_nothing(rig, caplog):
    rig.state_dir.mkdir()
    (rig.state_dir / "snapshots").write_text("in the way")
    async with rig.leading(snapshot_every_inputs=1):
        await rig.submit()
        await rig.settle()
        await rig.submit()
        await rig.settle()
        assert rig.metric("snapshot_failures_total") >= 1
    assert len(job_decisions(rig)) == 4
    assert rig.server.objects, "the bucket is tried although the disk fails"


def test_pack_and_unpack_are_inverse():
    snapshot = Snapshot(input_seq=7, input_at_ms=9, decision_seq=11, core=b"\x00\n\xff")
    assert unpack(pack(snapshot)) == snapshot


async def test_the_leader_record_says_what_was_decided(rig):
    job_id = await rig.submit()
    await rig.killed()
    await rig.killed()
    records = [m for m in rig.stored(DECISIONS) if m.subject == subjects.LEADER]
    assert msgspec.json.decode(records[-1].data)["input_seq"] == job_id
