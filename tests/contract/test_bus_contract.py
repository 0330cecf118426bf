"""What every implementation of the bus promises: one suite, run on both."""

import asyncio
import json
import time
from contextlib import aclosing

import pytest

from broker import subjects, topology
from broker.bus import Bus, KvEntry, Stored
from broker.clock import SystemClock
from broker.embedded import EmbeddedServer
from broker.errors import (
    BusError,
    FencedError,
    NoRespondersError,
    TopologyError,
    WrongRevisionError,
)
from broker.memory_bus import MemoryBus, MemoryServer
from broker.nats_bus import connect

SUBMIT = subjects.job_request("ada", "submit")
STOP = subjects.command("n1", "stop_run")
PATIENCE_S = 10


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.nats)])
async def new_bus(request, tmp_path):
    """Return a function that connects one more bus to the same server."""
    buses = []
    server = None
    memory_server = MemoryServer(SystemClock())

    async def make() -> Bus:
        bus = MemoryBus(memory_server) if server is None else await connect(server.url, name="t")
        buses.append(bus)
        return bus

    if request.param == "nats":
        server = EmbeddedServer(tmp_path / "nats")
        await server.start()
    yield make
    for bus in buses:
        await bus.close()
    if server is not None:
        await server.stop()


@pytest.fixture
async def bus(new_bus):
    bus = await new_bus()
    await topology.ensure(bus)
    return bus


async def take(source, count):
    """Return the first items of an endless source, and close it."""
    items = []
    async with asyncio.timeout(PATIENCE_S), aclosing(source):
        async for item in source:
            items.append(item)
            if len(items) == count:
                break
    return items


async def collect(source):
    async with asyncio.timeout(PATIENCE_S), aclosing(source):
        return [item async for item in source]


async def test_appends_are_numbered_from_one(bus):
    assert await bus.append(SUBMIT, b"a") == Stored(1)
    assert await bus.append(subjects.node_input("n1", "joined"), b"b") == Stored(2)


async def test_an_id_is_stored_once_and_the_first_sequence_is_told_again(bus):
    await bus.append(SUBMIT, b"other")
    first = await bus.append(SUBMIT, b"a", message_id="key")
    assert await bus.append(SUBMIT, b"changed", message_id="key") == Stored(2, duplicate=True)
    assert first == Stored(2)
    assert (await bus.stream_state(topology.INPUT)).last_seq == 2


async def test_one_id_appended_by_many_at_once_is_stored_once(bus, new_bus):
    other = await new_bus()
    appends = [each.append(SUBMIT, b"a", message_id="key") for each in [bus, other] * 10]
    stored = await asyncio.gather(*appends)
    assert {each.seq for each in stored} == {1}
    assert sum(not each.duplicate for each in stored) == 1


async def test_appends_made_at_once_keep_their_order(bus):
    count = 600
    stored = await asyncio.gather(*(bus.append(SUBMIT, str(i).encode()) for i in range(count)))
    assert [each.seq for each in stored] == list(range(1, count + 1))
    read = await collect(bus.read_until(topology.INPUT, from_seq=1, last_seq=count))
    assert [int(message.data) for message in read] == list(range(count))


async def test_stored_messages_carry_subject_id_and_the_servers_time(bus):
    before_ms = time.time_ns() // 1_000_000
    await bus.append(SUBMIT, b"a", message_id="key")
    after_ms = time.time_ns() // 1_000_000
    (message,) = await collect(bus.read_until(topology.INPUT, from_seq=1, last_seq=1))
    assert (message.subject, message.data, message.seq) == (SUBMIT, b"a", 1)
    assert message.message_id == "key"
    assert before_ms <= message.at_ms <= after_ms
    assert await bus.last_message(topology.INPUT, SUBMIT) == message


async def test_a_stale_leader_is_refused(bus, new_bus):
    newer = await new_bus()
    old_epoch = await bus.claim_leadership(b"old", message_id="old")
    await bus.append(STOP, b"fine", epoch=old_epoch)
    new_epoch = await newer.claim_leadership(b"new", message_id="new")
    assert new_epoch > old_epoch
    with pytest.raises(FencedError):
        await bus.append(STOP, b"late", epoch=old_epoch)
    await newer.append(STOP, b"fine too", epoch=new_epoch)
    stored = await collect(
        bus.read_until(topology.DECISIONS, from_seq=1, last_seq=4, subject=subjects.COMMANDS_ALL)
    )
    assert [message.data for message in stored] == [b"fine", b"fine too"]


async def test_many_fenced_appends_in_flight_are_all_stored_or_all_refused(bus, new_bus):
    epoch = await bus.claim_leadership(b"old", message_id="old")
    await asyncio.gather(*(bus.append(STOP, b"", epoch=epoch) for _ in range(100)))
    await (await new_bus()).claim_leadership(b"new", message_id="new")
    late = [bus.append(STOP, b"", epoch=epoch) for _ in range(100)]
    results = await asyncio.gather(*late, return_exceptions=True)
    assert all(isinstance(result, FencedError) for result in results)


async def test_claiming_again_with_the_same_id_changes_nothing(bus):
    epoch = await bus.claim_leadership(b"a", message_id="a")
    assert await bus.claim_leadership(b"a", message_id="a") == epoch


async def test_a_claim_overtaken_by_a_newer_one_is_refused(bus):
    await bus.claim_leadership(b"a", message_id="a")
    await bus.claim_leadership(b"b", message_id="b")
    with pytest.raises(FencedError):
        await bus.claim_leadership(b"a", message_id="a")


async def test_rivals_never_share_an_epoch(bus, new_bus):
    rivals = [bus, await new_bus(), await new_bus()]
    claims = [rival.claim_leadership(b"", message_id=str(i)) for i, rival in enumerate(rivals)]
    results = await asyncio.gather(*claims, return_exceptions=True)
    epochs = [result for result in results if isinstance(result, int)]
    assert len(set(epochs)) == len(epochs) > 0
    newest = await bus.last_message(topology.DECISIONS, subjects.LEADER)
    assert newest.seq == max(epochs)


async def test_reading_goes_on_with_what_comes_later(bus):
    await bus.append(SUBMIT, b"0")
    await bus.append(SUBMIT, b"1")
    reader = asyncio.create_task(take(bus.read(topology.INPUT, from_seq=2), 3))
    await asyncio.sleep(0)
    for data in (b"2", b"3"):
        await bus.append(SUBMIT, data)
    assert [(m.seq, m.data) for m in await reader] == [(2, b"1"), (3, b"2"), (4, b"3")]


async def test_reading_may_begin_beyond_the_end(bus):
    reader = asyncio.create_task(take(bus.read(topology.INPUT, from_seq=3), 1))
    await asyncio.gather(*(bus.append(SUBMIT, b"") for _ in range(3)))
    assert [message.seq for message in await reader] == [3]


async def test_reading_by_subject_skips_the_rest(bus):
    for node in ("n1", "n2", "n1"):
        await bus.append(subjects.command(node, "stop_run"), node.encode())
    source = bus.read(topology.DECISIONS, from_seq=1, subject=subjects.commands_of("n1"))
    assert [message.seq for message in await take(source, 2)] == [1, 3]


async def test_reading_until_ends_though_the_last_message_is_not_wanted(bus):
    for node in ("n1", "n2", "n1", "n2"):
        await bus.append(subjects.command(node, "stop_run"), b"")
    wanted = subjects.commands_of("n1")
    for last_seq, expected in ((4, [1, 3]), (2, [1]), (1, [1])):
        source = bus.read_until(topology.DECISIONS, from_seq=1, last_seq=last_seq, subject=wanted)
        assert [message.seq for message in await collect(source)] == expected
    nobody = subjects.commands_of("n3")
    source = bus.read_until(topology.DECISIONS, from_seq=1, last_seq=4, subject=nobody)
    assert await collect(source) == []


async def test_reading_until_before_the_start_reads_nothing(bus):
    assert await collect(bus.read_until(topology.INPUT, from_seq=1, last_seq=0)) == []


async def test_reading_until_beyond_the_end_is_an_error(bus):
    await bus.append(SUBMIT, b"")
    with pytest.raises(BusError, match="ends at 1, before 7"):
        await collect(bus.read_until(topology.INPUT, from_seq=1, last_seq=7))


async def test_reading_an_unknown_stream_is_an_error(bus):
    with pytest.raises(BusError):
        await take(bus.read("NO_SUCH_STREAM", from_seq=1), 1)


async def test_a_consumer_gets_back_only_what_it_did_not_acknowledge(bus, new_bus):
    for number in range(4):
        await bus.append(STOP, str(number).encode())

    def consume(bus):
        return bus.consume(
            topology.DECISIONS, durable="launcher_n1", subject=subjects.commands_of("n1")
        )

    first = await take(consume(bus), 3)
    assert [delivery.message.data for delivery in first] == [b"0", b"1", b"2"]
    await first[0].ack()
    await first[2].in_progress()
    await first[2].ack()
    again = await take(consume(await new_bus()), 2)
    assert sorted(delivery.message.data for delivery in again) == [b"1", b"3"]
    for delivery in again:
        await delivery.ack()
    await bus.append(STOP, b"4")
    (last,) = await take(consume(bus), 1)
    assert last.message.data == b"4"


async def test_a_consumer_sees_only_its_subject_and_what_comes_later(bus):
    await bus.append(subjects.command("n2", "stop_run"), b"other")
    source = bus.consume(
        topology.DECISIONS, durable="launcher_n1", subject=subjects.commands_of("n1")
    )
    consumer = asyncio.create_task(take(source, 1))
    await bus.append(STOP, b"mine", message_id="1.0")
    ((delivery,)) = await consumer
    assert delivery.message.data == b"mine"
    assert (delivery.message.seq, delivery.message.message_id) == (2, "1.0")


async def test_last_messages_are_one_of_each_subject(bus):
    for subject, data in ((SUBMIT, b"1"), (subjects.job_request("bob", "submit"), b"2")):
        await bus.append(subject, b"older")
        await bus.append(subject, data)
    newest = await bus.last_messages(topology.INPUT, subjects.JOBS_ALL)
    assert [message.data for message in newest] == [b"1", b"2"]
    assert await bus.last_messages(topology.INPUT, subjects.INPUTS_ALL) == []
    nobody = subjects.job_request("eve", "submit")
    assert await bus.last_message(topology.INPUT, nobody) is None


async def test_an_empty_stream_begins_after_its_end(bus):
    state = await bus.stream_state(topology.INPUT)
    assert (state.first_seq, state.last_seq, state.bytes) == (1, 0, 0)
    await bus.append(SUBMIT, b"a")
    state = await bus.stream_state(topology.INPUT)
    assert (state.first_seq, state.last_seq) == (1, 1)
    assert state.bytes > 0


async def test_telemetry_keeps_the_last_value_of_each_node(bus, new_bus):
    other = await new_bus()
    for node, data in (("n1", b"old"), ("n2", b"x"), ("n1", b"new")):
        await bus.publish(subjects.telemetry(node), data)
    await bus.barrier()
    newest = await other.last_messages(topology.TELEMETRY, subjects.TELEMETRY_ALL)
    assert {message.subject: message.data for message in newest} == {
        subjects.telemetry("n1"): b"new",
        subjects.telemetry("n2"): b"x",
    }


async def test_a_plain_request_on_a_captured_subject_is_acknowledged_with_its_number(bus):
    reply = json.loads(await bus.request(SUBMIT, b"{}"))
    assert (reply["stream"], reply["seq"]) == (topology.INPUT, 1)


async def test_core_messages_reach_matching_subscribers_one_at_a_time(bus, new_bus):
    seen, running, done = [], 0, asyncio.Event()

    async def handler(message):
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        seen.append((message.subject, message.data))
        if len(seen) == 2:
            done.set()

    await bus.subscribe(subjects.HEARTBEATS_ALL, handler)
    other = await new_bus()
    for subject in (subjects.heartbeat("n1"), "tiresias.v1.hb.n1.deeper", subjects.heartbeat("n2")):
        await other.publish(subject, b"beat")
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    assert seen == [(subjects.heartbeat("n1"), b"beat"), (subjects.heartbeat("n2"), b"beat")]


async def test_a_failing_handler_is_logged_and_goes_on(bus, caplog):
    async def handler(message):
        if message.data == b"bad":
            raise ValueError("boom")
        await bus.respond(message, b"good")

    await bus.subscribe("echo", handler)
    await bus.publish("echo", b"bad")
    assert await bus.request("echo", b"ok") == b"good"
    assert "boom" in caplog.text


async def test_a_request_without_a_responder_says_so_at_once(bus):
    with pytest.raises(NoRespondersError):
        await bus.request(subjects.api("explain"), b"{}")


async def test_after_unsubscribing_nothing_comes(bus):
    async def handler(message):
        await bus.respond(message, b"")

    subscription = await bus.subscribe("echo", handler)
    await bus.request("echo", b"")
    await subscription.unsubscribe()
    await bus.barrier()
    with pytest.raises(NoRespondersError):
        await bus.request("echo", b"")


async def test_responding_to_a_plain_message_does_nothing(bus):
    done = asyncio.Event()

    async def handler(message):
        await bus.respond(message, b"unwanted")
        done.set()

    await bus.subscribe("news", handler)
    await bus.publish("news", b"")
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()


async def test_a_key_is_put_read_and_deleted(bus):
    assert await bus.kv_get(topology.JOBS, "1") is None
    revision = await bus.kv_put(topology.JOBS, "1", b"a")
    assert await bus.kv_get(topology.JOBS, "1") == KvEntry("1", b"a", revision)
    assert await bus.kv_put(topology.JOBS, "1", b"b") > revision
    await bus.kv_delete(topology.JOBS, "1")
    assert await bus.kv_get(topology.JOBS, "1") is None


async def test_compare_and_set_wins_only_at_the_expected_revision(bus):
    revision = await bus.kv_compare_and_set(topology.LEASE, "leader", b"a", 0)
    with pytest.raises(WrongRevisionError):
        await bus.kv_compare_and_set(topology.LEASE, "leader", b"b", 0)
    newer = await bus.kv_compare_and_set(topology.LEASE, "leader", b"c", revision)
    with pytest.raises(WrongRevisionError):
        await bus.kv_compare_and_set(topology.LEASE, "leader", b"d", revision)
    assert await bus.kv_get(topology.LEASE, "leader") == KvEntry("leader", b"c", newer)


async def test_a_deleted_key_is_free_to_be_created(bus):
    await bus.kv_put(topology.LEASE, "leader", b"a")
    await bus.kv_delete(topology.LEASE, "leader")
    revision = await bus.kv_compare_and_set(topology.LEASE, "leader", b"b", 0)
    assert await bus.kv_get(topology.LEASE, "leader") == KvEntry("leader", b"b", revision)


async def test_of_many_creators_of_a_key_one_wins(bus):
    creators = [bus.kv_compare_and_set(topology.LEASE, "leader", b"", 0) for _ in range(10)]
    results = await asyncio.gather(*creators, return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1


async def test_all_keys_are_the_live_ones(bus):
    for key in ("1", "2", "3"):
        await bus.kv_put(topology.JOBS, key, key.encode())
    await bus.kv_delete(topology.JOBS, "2")
    entries = await bus.kv_all(topology.JOBS)
    assert {key: entry.data for key, entry in entries.items()} == {"1": b"1", "3": b"3"}
    assert await bus.kv_all(topology.NODES) == {}


async def test_a_watch_tells_the_present_then_none_then_each_change(bus):
    for key in ("1", "2"):
        await bus.kv_put(topology.JOBS, key, b"old")
    await bus.kv_delete(topology.JOBS, "2")
    async with asyncio.timeout(PATIENCE_S), aclosing(bus.kv_watch(topology.JOBS)) as watch:
        assert (await anext(watch)).key == "1"
        assert await anext(watch) is None
        await bus.kv_put(topology.JOBS, "3", b"new")
        await bus.kv_delete(topology.JOBS, "1")
        changes = [await anext(watch), await anext(watch)]
    assert [(entry.key, entry.data) for entry in changes] == [("3", b"new"), ("1", None)]


async def test_a_watch_of_one_key_sees_only_that_key(bus):
    await bus.kv_put(topology.JOBS, "1", b"other")
    async with asyncio.timeout(PATIENCE_S), aclosing(bus.kv_watch(topology.JOBS, "2")) as watch:
        assert await anext(watch) is None
        await bus.kv_put(topology.JOBS, "1", b"other")
        await bus.kv_put(topology.JOBS, "2", b"mine")
        assert (await anext(watch)).data == b"mine"


@pytest.mark.parametrize("size", [0, 10, 300_000])
async def test_an_object_is_read_back_as_written_and_the_newest_wins(bus, size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await bus.object_put(topology.SNAPSHOTS, "newest", b"older" * 100_000)
    await bus.object_put(topology.SNAPSHOTS, "newest", data)
    assert await bus.object_get(topology.SNAPSHOTS, "newest") == data
    assert await bus.object_get(topology.SNAPSHOTS, "missing") is None


async def test_a_full_stream_refuses_loudly(bus):
    small = topology.StreamDefinition(name="SMALL", subjects=("small.>",), max_bytes=2_000)
    await bus.create_stream(small.config())
    appends = [bus.append("small.x", b"x" * 100) for _ in range(30)]
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert isinstance(results[0], Stored)
    assert type(results[-1]) is BusError
    assert (await bus.stream_state("SMALL")).bytes <= 2_000


async def test_ensuring_again_changes_nothing_and_a_new_limit_is_applied(bus):
    before = await bus.stream_config(topology.INPUT)
    await topology.ensure(bus)
    assert await bus.stream_config(topology.INPUT) == before
    await topology.ensure(bus, max_log_bytes=100 * topology.MIB)
    assert (await bus.stream_config(topology.INPUT))["max_bytes"] == 100 * topology.MIB


async def test_a_difference_that_cannot_be_updated_is_an_error_that_names_it(new_bus):
    bus = await new_bus()
    foreign = topology.StreamDefinition(
        name=topology.INPUT, subjects=("tiresias.v1.jobs.>",), storage="memory"
    )
    await bus.create_stream(foreign.config())
    with pytest.raises(TopologyError, match="TIRESIAS_INPUT: storage is 'memory', wanted 'file'"):
        await topology.ensure(bus)


async def test_a_connected_bus_says_so_and_a_closed_one_does_not(new_bus):
    bus = await new_bus()
    assert bus.is_connected
    assert bus.disconnected_since_ms is None
    await bus.close()
    assert not bus.is_connected
    await bus.close()
