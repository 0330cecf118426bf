"""Inputs wait for the bus, one a key; state is replaced as a whole."""

import asyncio
import stat

import pytest

from broker.bus import Stored
from broker.clock import ManualClock
from broker.errors import BusError, BusUnavailableError
from broker.schemas.node import GpuFaultReason, GpuHealthChanged, GpuInfo, NodeLeft
from node_agent import outbox as outbox_module
from node_agent import state_file
from node_agent.core.health import Fault
from node_agent.outbox import Outbox
from node_agent.state_file import AgentState, StateFileError


class FakeBus:
    """Stores or fails as told."""

    def __init__(self) -> None:
        self.error: BusError | None = None
        self.attempts: list[str] = []
        self.stored: list[tuple[str, str]] = []

    async def append(self, subject, data, *, message_id="", epoch=None, timeout_ms=10_000):
        self.attempts.append(message_id)
        if self.error is not None:
            raise self.error
        self.stored.append((subject, message_id))
        return Stored(seq=len(self.stored))


@pytest.fixture
async def sending():
    bus, clock = FakeBus(), ManualClock()
    outbox = Outbox(bus, clock, "n1")
    task = asyncio.create_task(outbox.run())
    yield bus, clock, outbox
    task.cancel()
    await asyncio.wait([task])


def health(reason=None) -> GpuHealthChanged:
    return GpuHealthChanged(node="n1", gpu_id="g", reason=reason)


async def test_inputs_go_out_in_order_on_their_subjects(sending) -> None:
    bus, clock, outbox = sending
    outbox.put("a", health(), "id-1")
    outbox.put("b", NodeLeft(node="n1"), "id-2")
    await clock.advance_ms(0)
    assert bus.stored == [
        ("tiresias.v1.in.node.n1.gpu_health_changed", "id-1"),
        ("tiresias.v1.in.node.n1.left", "id-2"),
    ]
    await outbox.drained()


async def test_an_unknown_outcome_is_retried_with_the_same_id_and_bounded_backoff(sending) -> None:
    bus, clock, outbox = sending
    bus.error = BusUnavailableError("no answer")
    outbox.put("a", health(), "id-1")
    await clock.advance_ms(60_000)
    assert set(bus.attempts) == {"id-1"}
    assert 8 <= len(bus.attempts) <= 12
    bus.error = None
    await clock.advance_ms(10_000)
    assert [message_id for _, message_id in bus.stored] == ["id-1"]


async def test_the_newest_of_a_key_wins(sending) -> None:
    bus, clock, outbox = sending
    bus.error = BusUnavailableError("no answer")
    for n in range(100):
        outbox.put("a", health(GpuFaultReason.THERMAL if n % 2 else None), f"id-{n}")
    await clock.advance_ms(0)
    bus.error = None
    await clock.advance_ms(10_000)
    assert [message_id for _, message_id in bus.stored] == ["id-99"]


async def test_a_refused_input_blocks_nothing(sending) -> None:
    bus, clock, outbox = sending
    bus.error = BusError("too large")
    outbox.put("a", health(), "id-1")
    await clock.advance_ms(0)
    bus.error = None
    outbox.put("b", health(), "id-2")
    await clock.advance_ms(0)
    assert [message_id for _, message_id in bus.stored] == ["id-2"]


async def test_the_number_of_waiting_inputs_is_bounded(sending, monkeypatch) -> None:
    bus, clock, outbox = sending
    monkeypatch.setattr(outbox_module, "MAX_KEYS", 2)
    for key in "abc":
        outbox.put(key, health(), key)
    outbox.put("a", health(), "a2")
    await clock.advance_ms(0)
    assert [message_id for _, message_id in bus.stored] == ["a2", "b"]


def test_state_comes_back_as_it_was_saved_and_is_private(tmp_path) -> None:
    path = tmp_path / "state" / "gpus.json"
    assert state_file.load(path) == AgentState()
    fault = Fault(reason=GpuFaultReason.LOST, detail="XID 79", boot_id="b", since_ms=3)
    state = AgentState(boot_id="b", gpus=(GpuInfo(gpu_id="g", index=0),), faults={"g": fault})
    state_file.save(path, state)
    assert state_file.load(path) == state
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["gpus.json"]


def test_a_half_written_temporary_file_is_ignored(tmp_path) -> None:
    path = tmp_path / "gpus.json"
    state_file.save(path, AgentState(boot_id="b"))
    path.with_suffix(".tmp").write_text('{"boot')
    assert state_file.load(path).boot_id == "b"


def test_a_broken_state_file_is_an_error_that_names_the_remedy(tmp_path) -> None:
    path = tmp_path / "gpus.json"
    path.write_text('{"faults": 3}')
    with pytest.raises(StateFileError, match="remove it to clear all GPU faults"):
        state_file.load(path)
