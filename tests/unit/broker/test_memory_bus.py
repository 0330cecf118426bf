"""The knobs and the time of the bus in memory; its promises are in the contract suite."""

import asyncio
from contextlib import aclosing

import pytest

from broker import subjects, topology
from broker.bus import Bus
from broker.clock import settle
from broker.errors import BusError, BusUnavailableError
from broker.memory_bus import MemoryBus
from broker.memory_stream import MemoryStream, subject_matches

SUBMIT = subjects.job_request("ada", "submit")
STOP = subjects.command("n1", "stop_run")


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*.c", "a.b.c", True),
    ],
)
def test_wildcards_match_as_in_nats(pattern, subject, matches):
    assert subject_matches(pattern, subject) is matches


def test_it_is_a_bus(memory_bus):
    def takes(bus: Bus) -> Bus:
        return bus

    assert takes(memory_bus) is memory_bus


async def test_messages_carry_the_time_of_the_clock(memory_bus, clock):
    await memory_bus.append(SUBMIT, b"a")
    await clock.advance_ms(1_500)
    await memory_bus.append(SUBMIT, b"b")
    messages = [m async for m in memory_bus.read_until(topology.INPUT, from_seq=1, last_seq=2)]
    assert messages[1].at_ms - messages[0].at_ms == 1_500


async def test_an_id_is_forgotten_after_the_duplicate_window(memory_bus, clock):
    await memory_bus.append(SUBMIT, b"", message_id="key")
    await clock.advance_ms(299_999)
    assert (await memory_bus.append(SUBMIT, b"", message_id="key")).duplicate
    await clock.advance_ms(1)
    assert not (await memory_bus.append(SUBMIT, b"", message_id="key")).duplicate


async def test_a_disconnected_bus_says_since_when(memory_bus, clock):
    await clock.advance_ms(70)
    memory_bus.disconnect()
    assert not memory_bus.is_connected
    assert memory_bus.disconnected_since_ms == 70
    memory_bus.reconnect()
    assert memory_bus.is_connected
    assert memory_bus.disconnected_since_ms is None


async def test_core_messages_are_dropped_while_either_side_is_disconnected(memory_bus):
    heard = []
    other = MemoryBus(memory_bus.server)

    async def handler(message):
        heard.append(message.data)

    await other.subscribe("news", handler)
    memory_bus.disconnect()
    await memory_bus.publish("news", b"lost at the sender")
    memory_bus.reconnect()
    other.disconnect()
    await memory_bus.publish("news", b"lost at the receiver")
    other.reconnect()
    await memory_bus.publish("news", b"heard")
    await settle()
    assert heard == [b"heard"]
    await other.close()


async def test_an_append_waits_for_the_connection(memory_bus, clock):
    memory_bus.disconnect()
    appends = [asyncio.create_task(memory_bus.append(SUBMIT, str(n).encode())) for n in range(3)]
    await clock.advance_ms(9_999)
    memory_bus.reconnect()
    assert [stored.seq for stored in await asyncio.gather(*appends)] == [1, 2, 3]


async def test_an_append_gives_up_when_its_time_is_out(memory_bus, clock):
    memory_bus.disconnect()
    append = asyncio.create_task(memory_bus.append(SUBMIT, b"", timeout_ms=500))
    await clock.advance_ms(499)
    assert not append.done()
    await clock.advance_ms(1)
    with pytest.raises(BusUnavailableError):
        await append


async def test_a_request_that_nobody_answers_gives_up_by_the_clock(memory_bus, clock):
    async def deaf(_message):
        pass

    await memory_bus.subscribe("api", deaf)
    request = asyncio.create_task(memory_bus.request("api", b"", timeout_ms=100))
    await clock.advance_ms(100)
    with pytest.raises(BusUnavailableError):
        await request


async def test_nothing_captures_an_unknown_subject(memory_bus):
    with pytest.raises(BusUnavailableError, match="no stream captures 'nowhere'"):
        await memory_bus.append("nowhere", b"")


async def test_readers_wait_while_disconnected(memory_bus):
    other = MemoryBus(memory_bus.server)
    seen = []

    async def read():
        async with aclosing(memory_bus.read(topology.INPUT, from_seq=1)) as messages:
            async for message in messages:
                seen.append(message.seq)  # noqa: PERF401 - watched live

    reader = asyncio.create_task(read())
    await other.append(SUBMIT, b"")
    await settle()
    memory_bus.disconnect()
    await other.append(SUBMIT, b"")
    await settle()
    assert seen == [1]
    memory_bus.reconnect()
    await settle()
    assert seen == [1, 2]
    reader.cancel()
    await asyncio.wait([reader])


async def test_an_acknowledgement_lost_on_the_way_brings_the_message_again(memory_bus):
    await memory_bus.append(STOP, b"")
    source = memory_bus.consume(
        topology.DECISIONS, durable="launcher_n1", subject=subjects.commands_of("n1")
    )
    async with aclosing(source) as deliveries:
        delivery = await anext(deliveries)
        memory_bus.disconnect()
        await delivery.ack()
        again = asyncio.create_task(anext(deliveries))
        await settle()
        assert not again.done()
        memory_bus.reconnect()
        delivery = await again
        assert delivery.message.seq == 1
        await delivery.ack()
        await delivery.ack()
        next_one = asyncio.create_task(anext(deliveries))
        await settle()
        assert not next_one.done()
        next_one.cancel()
        await asyncio.wait([next_one])


async def test_an_acknowledgement_that_arrived_stays_when_sent_again_without_a_connection(
    memory_bus,
):
    await memory_bus.append(STOP, b"")
    source = memory_bus.consume(
        topology.DECISIONS, durable="launcher_n1", subject=subjects.commands_of("n1")
    )
    async with aclosing(source) as deliveries:
        delivery = await anext(deliveries)
        await delivery.ack()
        memory_bus.disconnect()
        await delivery.ack()
        memory_bus.reconnect()
        await memory_bus.append(STOP, b"next")
        assert (await anext(deliveries)).message.data == b"next"


async def test_a_core_message_into_a_full_stream_vanishes(memory_bus):
    full = topology.StreamDefinition(name="FULL", subjects=("full.>",), max_bytes=1)
    await memory_bus.create_stream(full.config())
    await memory_bus.publish("full.x", b"too large")
    assert (await memory_bus.stream_state("FULL")).last_seq == 0


async def test_an_unknown_stream_is_an_error(memory_bus):
    with pytest.raises(BusError, match="no stream 'NO'"):
        await memory_bus.stream_state("NO")
    assert await memory_bus.stream_config("NO") is None


def test_a_stream_that_discards_old_messages_makes_room():
    config = topology.StreamDefinition(name="S", subjects=("s",), discard="old", max_bytes=25)
    stream = MemoryStream(config.config())
    for _ in range(5):
        stream.append("s", b"123456789", "", 0)
    assert stream.state.first_seq == 4
    assert stream.state.last_seq == 5
    assert [record.message.seq for record in stream.records_from(1, "")] == [4, 5]


async def test_a_subscription_may_be_ended_twice(memory_bus):
    async def handler(_message):
        pass

    subscription = await memory_bus.subscribe("news", handler)
    await subscription.unsubscribe()
    await subscription.unsubscribe()
