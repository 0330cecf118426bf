"""Views survive a server that forgot them: what was written lately is written again."""

import pytest

from broker import codec
from broker.memory_bus import MemoryBus
from broker.runtime import Supervisor
from broker.schemas.views import JobState, JobView
from broker.topology import JOBS
from scheduler_svc.views import HEAL_EVERY_MS, PAUSE_MS, RECENT_MS, ViewWriter


@pytest.fixture
async def written(memory_bus, clock):
    """A writer that has written the view of job 1, and the bus it writes to."""
    writer = ViewWriter(memory_bus, clock)
    async with Supervisor() as tasks:
        tasks.start("views", writer.run())
        tasks.start("views again", writer.heal())
        view = JobView(job_id=1, name="a", user="ann", state=JobState.SUCCEEDED)
        writer.put([view])
        await clock.advance_ms(PAUSE_MS)
        assert await stored(memory_bus) == view
        yield writer


async def stored(bus: MemoryBus):
    entry = await bus.kv_get(JOBS, "1")
    return None if entry is None else codec.decode(JobView, entry.data)


async def forget_and_reconnect(bus: MemoryBus):
    await bus.kv_delete(JOBS, "1")
    bus.disconnect()
    bus.reconnect()


async def test_a_view_the_server_forgot_in_a_crash_is_written_again(written, memory_bus, clock):
    await forget_and_reconnect(memory_bus)
    await clock.advance_ms(HEAL_EVERY_MS + PAUSE_MS)
    assert (await stored(memory_bus)).state is JobState.SUCCEEDED


async def test_a_newer_view_that_waits_is_not_replaced(written, memory_bus, clock):
    await forget_and_reconnect(memory_bus)
    written.put([JobView(job_id=1, name="newer", user="ann", state=JobState.SUCCEEDED)])
    await clock.advance_ms(HEAL_EVERY_MS + PAUSE_MS)
    assert (await stored(memory_bus)).name == "newer"


async def test_views_the_server_has_long_put_on_its_disk_are_left_alone(written, memory_bus, clock):
    await clock.advance_ms(RECENT_MS + HEAL_EVERY_MS)
    await forget_and_reconnect(memory_bus)
    await clock.advance_ms(HEAL_EVERY_MS + PAUSE_MS)
    assert await stored(memory_bus) is None


async def test_without_a_reconnect_nothing_is_written_twice(written, memory_bus, clock):
    await memory_bus.kv_delete(JOBS, "1")
    await clock.advance_ms(HEAL_EVERY_MS + PAUSE_MS)
    assert await stored(memory_bus) is None
