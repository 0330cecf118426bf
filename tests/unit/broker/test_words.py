"""Ids, subjects and the clock that stands still."""

import asyncio

import pytest

from broker import ids, subjects
from broker.clock import ManualClock, SystemClock


@pytest.mark.parametrize("value", ["a", "node-1", "rack_2", "0", "a" * 64])
def test_a_token_of_plain_characters_is_kept(value):
    assert ids.checked_token("node", value) == value


@pytest.mark.parametrize("value", ["", "A", "a.b", "a b", "*", ">", "ä", "a\n", "a" * 65])
def test_what_would_change_a_subject_is_no_token(value):
    with pytest.raises(ids.InvalidIdError, match="invalid node"):
        ids.checked_token("node", value)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("GPU-Box.example.org", "gpu-box-example-org"),
        ("ada", "ada"),
        ("--", "unnamed"),
        ("", "unnamed"),
        ("x" * 100, "x" * 64),
    ],
)
def test_any_name_folds_into_a_token(text, token):
    assert ids.to_token(text) == token
    assert ids.checked_token("node", ids.to_token(text)) == token


def test_a_run_id_is_split_into_what_it_was_made_of():
    assert ids.split_run_id(ids.run_id(7, 2)) == (7, 2)
    assert ids.task_name("worker", 0) == "worker-0"


@pytest.mark.parametrize("value", ["", "7", "0-1", "7-0", "7-1-1", "7-1\n", "a-b", "-7-1"])
def test_what_is_no_run_id_is_refused(value):
    with pytest.raises(ids.InvalidIdError, match="invalid run id"):
        ids.split_run_id(value)


def test_subjects_are_those_of_the_table():
    assert subjects.job_request("ada", "submit") == "tiresias.v1.jobs.ada.submit"
    assert subjects.node_input("n1", "joined") == "tiresias.v1.in.node.n1.joined"
    assert subjects.operator_input("ada", "cordon") == "tiresias.v1.in.operator.ada.cordon"
    assert subjects.scheduler_input("clock") == "tiresias.v1.in.scheduler.clock"
    assert subjects.profile_input("skew") == "tiresias.v1.in.profile.skew"
    assert subjects.command("n1", "stop_run") == "tiresias.v1.cmd.n1.stop_run"
    assert subjects.commands_of("n1") == "tiresias.v1.cmd.n1.>"
    assert subjects.job_fact(7, "queued") == "tiresias.v1.evt.job.7.queued"
    assert subjects.job_facts(7) == "tiresias.v1.evt.job.7.>"
    assert subjects.node_fact("n1", "up") == "tiresias.v1.evt.node.n1.up"
    assert subjects.dead_letter("input") == "tiresias.v1.dead.input"
    assert subjects.heartbeat("n1") == "tiresias.v1.hb.n1"
    assert subjects.telemetry("n1") == "tiresias.v1.tel.n1"
    assert subjects.control("n1", "logs") == "tiresias.v1.ctl.n1.logs"
    assert subjects.api("explain") == "tiresias.v1.api.explain"
    assert subjects.tokens_after_prefix("tiresias.v1.hb.n1") == ["hb", "n1"]


@pytest.mark.parametrize(
    "build",
    [
        lambda name: subjects.job_request(name, "submit"),
        lambda name: subjects.node_input(name, "joined"),
        lambda name: subjects.operator_input(name, "cordon"),
        lambda name: subjects.command(name, "stop_run"),
        subjects.commands_of,
        lambda name: subjects.node_fact(name, "up"),
        subjects.heartbeat,
        subjects.telemetry,
        lambda name: subjects.control(name, "logs"),
    ],
)
def test_no_name_can_smuggle_tokens_into_a_subject(build):
    with pytest.raises(ids.InvalidIdError):
        build("n1.in.node.n2")


async def test_the_manual_clock_wakes_sleepers_at_their_own_time():
    clock = ManualClock(1_000)
    woken = []

    async def sleeper(delay_ms):
        await clock.sleep_ms(delay_ms)
        woken.append((delay_ms, clock.now_ms()))

    tasks = [asyncio.create_task(sleeper(delay_ms)) for delay_ms in (30, 10, 20)]
    await clock.advance_ms(25)
    assert woken == [(10, 1_010), (20, 1_020)]
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_025, 25)
    await clock.advance_ms(5)
    assert woken[-1] == (30, 1_030)
    await asyncio.gather(*tasks)


async def test_a_cancelled_sleeper_does_not_stop_the_manual_clock():
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep_ms(10))
    await clock.advance_ms(1)
    task.cancel()
    await asyncio.wait([task])
    await clock.advance_ms(20)
    assert clock.monotonic_ms() == 21


async def test_a_sleeper_that_sleeps_again_wakes_within_one_advance():
    clock = ManualClock(0)
    ticks = []

    async def ticker():
        for _ in range(3):
            await clock.sleep_ms(10)
            ticks.append(clock.now_ms())

    task = asyncio.create_task(ticker())
    await clock.advance_ms(100)
    assert ticks == [10, 20, 30]
    await task


async def test_the_system_clock_moves_forward():
    clock = SystemClock()
    before = clock.monotonic_ms()
    await clock.sleep_ms(0)
    assert clock.monotonic_ms() >= before
    assert clock.now_ms() > 1_700_000_000_000
