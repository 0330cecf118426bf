"""Orders to start that waited: one with a stop behind it never starts, not even for a moment."""

import pytest

from broker.schemas.run import RunExited, RunStarted, StopReason
from tests.unit.launcher.samples import NODE, preempt, prepare, start, stop, whole_gang
from tests.unit.launcher.support import until

WAITED_MS = 60_000


async def back_after(world, *commands):
    """The launcher is away while the commands come, and is started again a minute later."""
    await world.down()
    await world.store(*commands)
    await world.clock.advance_ms(WAITED_MS)
    await world.up()
    await until(world.is_acknowledged)
    await world.told()


@pytest.mark.parametrize(
    ("withdrawal", "reason"),
    [(stop(reason=StopReason.ABORT), StopReason.ABORT), (preempt(), StopReason.PREEMPT)],
)
async def test_a_run_that_was_given_up_meanwhile_is_never_started(world, withdrawal, reason):
    await back_after(world, whole_gang(prepare()), withdrawal)
    assert world.supervisors.plans == []
    assert world.heard(RunExited) == [RunExited(node=NODE, run_id="7-1", asked=reason)]


async def test_a_prepared_gang_that_was_given_up_meanwhile_is_never_started(world):
    await world.send(prepare())
    await back_after(world, start(), stop(reason=StopReason.ABORT))
    assert world.supervisors.plans == []
    assert world.heard(RunExited) == [RunExited(node=NODE, run_id="7-1", asked=StopReason.ABORT)]


async def test_an_order_that_waited_and_still_stands_is_obeyed(world):
    await back_after(
        world, whole_gang(prepare()), stop("6-1"), whole_gang(prepare("8-1")), stop("8-1")
    )
    world.supervisors.up("7-1")
    await world.ring("7-1")
    assert {plan.run_id for plan in world.supervisors.plans} == {"7-1"}
    assert [said.run_id for said in world.heard(RunStarted)] == ["7-1"]
