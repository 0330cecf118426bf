"""Heartbeats on the bus become inputs; bad ones and bad times stop nothing."""

from broker import codec, subjects
from broker.errors import BusUnavailableError
from broker.memory_bus import MemoryBus
from broker.schemas.node import Heartbeat
from broker.schemas.run import InventoryReported
from broker.topology import INPUT, NODES
from scheduler_svc.core.scheduler import Scheduler


async def beat(rig, node, sequence=1, subject=None):
    heartbeat = Heartbeat(node=node, boot_id="b", sequence=sequence, at_ms=rig.clock.now_ms())
    await rig.client.publish(subject or subjects.heartbeat(node), codec.encode(heartbeat))


def told(rig):
    found = [m for m in rig.stored(INPUT) if ".in.scheduler.node_" in m.subject]
    return [message.subject.rsplit(".", 1)[1] for message in found]


async def node_state(rig, node):
    return (await rig.client.kv_get(NODES, node)).data


async def test_a_node_falls_silent_is_heard_and_is_lost(rig):
    async with rig.leading():
        await rig.join("n1")
        await rig.settle()
        await rig.clock.advance_ms(7_000)
        await rig.settle()
        assert told(rig) == ["node_silent"]
        assert b'"silent"' in await node_state(rig, "n1")
        await beat(rig, "n1")
        await rig.clock.advance_ms(1_000)
        await rig.settle()
        assert told(rig) == ["node_silent", "node_heard"]
        for _ in range(60):
            await rig.clock.advance_ms(1_000)
        await rig.settle()
    assert told(rig) == ["node_silent", "node_heard", "node_silent", "node_lost"]


async def test_nodes_known_from_a_snapshot_are_watched(rig):
    async with rig.leading():
        await rig.join("n1")
        await rig.settle()
    async with rig.leading():
        await rig.clock.advance_ms(7_000)
        await rig.settle()
    assert told(rig) == ["node_silent"]


async def test_heartbeats_nobody_can_use_are_skipped(rig):
    async with rig.leading():
        await rig.join("n1")
        await rig.client.publish(subjects.heartbeat("n1"), b"\xff")
        await beat(rig, "n1", subject=subjects.heartbeat("n2"))
        await beat(rig, "stranger")
        await rig.settle()
        await rig.clock.advance_ms(7_000)
        await rig.settle()
    assert told(rig) == ["node_silent"]


async def test_a_verdict_that_could_not_be_appended_is_tried_again(rig):
    class NoInputs(MemoryBus):
        down = True

        async def append(self, subject, data, **options):
            if self.down and ".in." in subject:
                raise BusUnavailableError("no answer in time")
            return await super().append(subject, data, **options)

    bus = NoInputs(rig.server)
    async with rig.leading(bus):
        await rig.join("n1")
        await rig.submit()
        await rig.settle()
        await rig.clock.advance_ms(8_000)
        assert told(rig) == []
        bus.down = False
        await rig.clock.advance_ms(2_000)
        await rig.settle()
        assert told(rig) == ["node_silent"]
    assert rig.decisions()[-1].subject.endswith((".demoted", ".down"))


async def test_after_our_own_disconnection_nodes_are_not_judged_at_once(rig, caplog):
    bus = MemoryBus(rig.server)
    async with rig.leading(bus):
        await rig.join("n1")
        await rig.settle()
        bus.disconnect()
        for _ in range(30):
            await rig.clock.advance_ms(1_000)
        bus.reconnect()
        await rig.clock.advance_ms(100)
        await beat(rig, "n1")
        await rig.settle()
        await rig.clock.advance_ms(3_000)
        assert told(rig) == []
        assert "judging nodes again" in caplog.text


async def test_launchers_are_asked_again_while_a_node_that_is_up_has_none(rig):
    asked = []

    async def note(message):
        asked.append(message.subject)

    await rig.client.subscribe(subjects.INVENTORY, note)
    rig.core_type = Scheduler
    async with rig.leading():
        await rig.join("n1")
        await rig.settle()
        assert len(asked) == 1
        for _ in range(6):
            await beat(rig, "n1")
            await rig.clock.advance_ms(1_000)
        await rig.settle()
        assert len(asked) == 2
        report = codec.encode(InventoryReported(node="n1", boot_id="b1"))
        await rig.client.append(subjects.node_input("n1", "inventory_reported"), report)
        await rig.settle()
        for _ in range(12):
            await beat(rig, "n1")
            await rig.clock.advance_ms(1_000)
        await rig.settle()
    assert len(asked) == 2
