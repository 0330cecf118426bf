"""The launcher on a bus in memory, with supervisors that do as told."""

import asyncio
import errno
import json

import pytest

from broker import subjects
from broker.codec import encode
from broker.schemas.command import TaskPlacement
from broker.schemas.run import (
    InventoryReported,
    LauncherLeft,
    PrepareRefusal,
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunReport,
    RunStarted,
    StopReason,
    TaskExit,
)
from launcher.core.run_state import BootSeen
from launcher.core.run_status import Supervising
from launcher.fork_server import Loss
from launcher.journal import Journal
from tests.unit.launcher.samples import NODE, preempt, prepare, start, stop, whole_gang, worker
from tests.unit.launcher.support import until


async def test_a_run_is_prepared_started_and_ends_with_one_report_each(world):
    await world.send(prepare(), start())
    world.supervisors.up("7-1")
    await world.ring("7-1")
    world.supervisors.end("7-1", 3)
    await world.ring("7-1")
    about = [(key, said) for key, said in world.records() if key.startswith("7-1")]
    ports = {"worker-0": world.config.first_port}
    assert about == [
        ("7-1/n1/prepared", RunPrepared(node=NODE, run_id="7-1", ports=ports)),
        ("7-1/n1/started", RunStarted(node=NODE, run_id="7-1", pids={"worker-0": 11})),
        (
            "7-1/n1/exited",
            RunExited(
                node=NODE,
                run_id="7-1",
                tasks=(TaskExit(task="worker-0", rank=0, exit_code=3),),
            ),
        ),
    ]
    (plan,) = world.supervisors.plans
    assert plan.checkpoint_dir == str(world.config.checkpoint_root / "7")
    assert plan.env["TIRESIAS_SOCKET"] == str(world.config.run_dir / "job.sock")


async def test_commands_of_one_run_keep_their_order_when_they_come_at_once(world):
    await world.send(prepare(), start(), preempt(grace_ms=70), prepare("8-1", worker(0, "G1")))
    assert world.supervisors.asks == [("7-1", StopReason.PREEMPT, 70)]
    assert [report.run_id for report in world.heard(RunPrepared)] == ["7-1", "8-1"]


async def test_repeated_commands_have_their_effect_once(world):
    await world.send(prepare(), prepare(), start(), start())
    world.supervisors.up("7-1")
    await world.ring("7-1")
    await world.ring("7-1")
    world.supervisors.end("7-1")
    await world.ring("7-1")
    await world.send(prepare(), start(), stop(), preempt())
    await world.told()
    assert len(world.supervisors.plans) == 1
    assert [type(said) for said in world.heard()][1:] == [RunPrepared, RunStarted, RunExited]


async def test_a_run_stopped_before_its_start_exits_without_tasks_and_frees_its_gpu(world):
    await world.send(prepare(), stop(reason=StopReason.ABORT), start())
    await world.told()
    (exited,) = world.heard(RunExited)
    assert exited == RunExited(node=NODE, run_id="7-1", asked=StopReason.ABORT)
    assert world.supervisors.plans == []
    await world.send(prepare("8-1"))
    assert world.heard(RunPrepared, "8-1")


async def test_unknown_runs_are_refused_to_start_and_lost_to_stop(world):
    await world.send(start("7-1"), stop("8-1"), preempt("9-1"))
    await world.told()
    (refused,) = world.heard(RunPrepareRefused)
    assert (refused.run_id, refused.reason) == ("7-1", PrepareRefusal.NOT_PREPARED)
    lost = {exited.run_id: (exited.lost, exited.asked) for exited in world.heard(RunExited)}
    assert lost == {"8-1": (True, StopReason.CANCEL), "9-1": (True, StopReason.PREEMPT)}


async def test_a_busy_gpu_is_refused_with_its_owner(world):
    await world.send(prepare("7-1", worker(0, "G0"), worker(1, "G1")))
    await world.send(prepare("8-1", worker(0, "G1"), worker(1, "G2")), stop("8-1"))
    await world.told()
    (refused,) = world.heard(RunPrepareRefused)
    assert refused.reason is PrepareRefusal.GPU_BUSY
    assert refused.owners == {"G1": "7-1"}
    assert world.heard(RunExited) == []


async def test_no_port_left_and_no_room_for_a_folder_are_refusals(world):
    many = [worker(i, f"G{i}") for i in range(11)]
    await world.send(prepare("7-1", *many))
    world.supervisors.folder_error = OSError(errno.ENOSPC, "no space left")
    await world.send(prepare("8-1"))
    world.supervisors.folder_error = None
    await world.send(prepare("9-1", *many[:10]))
    await world.told()
    reasons = [refused.reason for refused in world.heard(RunPrepareRefused)]
    assert reasons == [PrepareRefusal.NO_PORTS, PrepareRefusal.NO_SPACE]
    assert len(world.heard(RunPrepared, "9-1")[0].ports) == 10


async def test_commands_that_are_stale_foreign_or_unreadable_are_dropped(world):
    await world.scheduler.append(
        subjects.command(NODE, "stop_run"), encode(prepare("6-1", epoch=1)), message_id="early"
    )
    await world.scheduler.append(subjects.command(NODE, "start_run"), b"{", message_id="torn")
    await world.scheduler.append(
        subjects.command("n2", "prepare_run"), encode(prepare("5-1")), message_id="other"
    )
    hostile = worker(0, "G3")
    await world.send(
        prepare("7-1", worker(0, "G1"), epoch=3),
        prepare("8-1", worker(0, "G2"), epoch=2),
        prepare("9-1", type(hostile)(role="../../x", index=0, rank=0, node=NODE), epoch=3),
    )
    await world.told()
    assert [said.run_id for said in world.heard(RunPrepared)] == ["6-1", "7-1"]


async def test_a_lost_request_to_stop_is_repeated_until_the_supervisor_has_it(world):
    await world.send(prepare(), start(), stop(grace_ms=40))
    world.supervisors.up("7-1")
    await world.ring("7-1")
    assert world.supervisors.asks == [("7-1", StopReason.CANCEL, 40)] * 2
    world.supervisors.asked("7-1", StopReason.CANCEL)
    await world.clock.advance_ms(3_000)
    assert len(world.supervisors.asks) == 2


async def test_news_whose_bell_was_not_heard_are_found(world):
    await world.send(prepare(), start())
    world.supervisors.up("7-1")
    world.supervisors.end("7-1")
    await world.clock.advance_ms(1_000)
    await until(lambda: world.heard(RunExited))
    assert len(world.heard(RunStarted)) == 1


async def test_a_swallowed_plan_is_sent_again_and_in_the_end_given_up(world):
    await world.send(prepare(), start())
    await world.clock.advance_ms(3_100)
    assert len(world.supervisors.plans) >= 2
    assert world.supervisors.buried == []
    await world.clock.advance_ms(9_000)
    await until(lambda: world.heard(RunExited))
    assert world.heard(RunExited)[0].lost


async def test_a_dead_supervisor_is_buried_and_its_run_lost(world):
    await world.send(prepare(), start())
    world.supervisors.up("7-1")
    await world.ring("7-1")
    world.supervisors.dead.add("7-1")
    await world.clock.advance_ms(1_000)
    await until(lambda: world.heard(RunExited))
    assert world.heard(RunExited)[0].lost
    assert world.supervisors.buried == ["7-1"]


async def test_a_run_whose_supervisor_could_not_be_forked_is_lost(world):
    await world.send(prepare(), start())
    losses: asyncio.Queue[Loss] = asyncio.Queue()
    losses.put_nowait(Loss("7-1", was_forked=False))
    losses.put_nowait(Loss("99-1", was_forked=False))
    task = asyncio.create_task(world.launcher.hear_of(losses))
    await until(lambda: world.heard(RunExited))
    task.cancel()
    assert world.heard(RunExited)[0].lost
    assert world.supervisors.buried == ["7-1"]


async def test_a_run_is_looked_after_at_once_when_its_supervisor_has_gone(world):
    await world.send(prepare(), start(), prepare("8-1", worker(0, "G1")), start("8-1"))
    for run_id in ("7-1", "8-1"):
        world.supervisors.up(run_id)
        await world.ring(run_id)
    world.supervisors.dead.add("7-1")
    world.supervisors.end("8-1")
    losses: asyncio.Queue[Loss] = asyncio.Queue()
    for run_id in ("99-1", "8-1", "7-1"):
        losses.put_nowait(Loss(run_id, was_forked=True))
    task = asyncio.create_task(world.launcher.hear_of(losses))
    await until(lambda: len(world.heard(RunExited)) == 2)
    task.cancel()
    assert {said.run_id: said.lost for said in world.heard(RunExited)} == {
        "7-1": True,
        "8-1": False,
    }
    assert world.supervisors.buried == ["7-1"]


async def test_the_inventory_is_told_at_the_start_and_when_a_leader_asks(world):
    await world.send(prepare(), start(), prepare("8-1", worker(0, "G1")))
    await world.clock.advance_ms(10)
    await world.scheduler.publish(subjects.INVENTORY, b"")
    await until(lambda: len(world.heard(InventoryReported)) == 2)
    first, second = world.heard(InventoryReported)
    assert first.runs == ()
    assert second.runs == (
        RunReport(run_id="7-1", phase="running"),
        RunReport(run_id="8-1", phase="prepared"),
    )
    assert first.boot_id == second.boot_id != ""


async def test_the_next_launcher_finishes_what_the_last_one_began(world):
    await world.send(prepare(), start(), prepare("8-1", worker(0, "G1")))
    await world.kill()
    world.supervisors.up("7-1")
    world.supervisors.end("7-1", 1)
    await world.up()
    await world.told()
    assert world.heard(RunExited)[0].tasks[0].exit_code == 1
    await world.send(prepare("9-1", worker(0, "G1")), start("8-1"))
    assert world.heard(RunPrepareRefused)[0].owners == {"G1": "8-1"}
    assert [plan.run_id for plan in world.supervisors.plans] == ["7-1", "8-1"]


async def test_a_start_cut_short_is_done_again_by_the_next_launcher(world):
    await world.send(prepare(), start(), preempt())
    await world.kill()
    world.supervisors.plans.clear()
    world.supervisors.asks.clear()
    await world.up()
    assert {plan.run_id for plan in world.supervisors.plans} == {"7-1"}
    assert world.supervisors.asks == [("7-1", StopReason.PREEMPT, 5_000)]


async def test_a_prepared_run_whose_ports_were_taken_meanwhile_is_lost(world):
    import socket

    await world.send(prepare())
    await world.kill()
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", world.config.first_port))
        await world.up()
        await world.told()
    assert world.heard(RunExited)[0].lost


async def test_after_a_restart_of_the_machine_all_runs_are_lost(world):
    await world.send(prepare(), start(), prepare("8-1", worker(0, "G1")))
    await world.down()
    journal = Journal(world.config.state_dir / "journal.jsonl")
    journal.record(BootSeen(boot_id="before"))
    await journal.close()
    await world.up()
    await world.told()
    assert {exited.run_id: exited.lost for exited in world.heard(RunExited)} == {
        "7-1": True,
        "8-1": True,
    }


async def test_reports_wait_out_an_absent_bus(world):
    await world.send(prepare(), start())
    world.bus.disconnect()
    world.supervisors.up("7-1")
    world.supervisors.end("7-1")
    world.launcher.on_ring("7-1")
    await world.clock.advance_ms(15_000)
    assert world.heard(RunExited) == []
    world.bus.reconnect()
    await world.clock.advance_ms(6_000)
    await until(lambda: world.heard(RunExited))
    assert [type(said) for said in world.heard()][1:] == [RunPrepared, RunStarted, RunExited]


async def test_runs_stop_when_the_lease_is_over(world):
    await world.send(prepare(), start(), prepare("8-1", worker(0, "G1")))
    world.supervisors.up("7-1")
    await world.ring("7-1")
    world.bus.disconnect()
    await world.clock.advance_ms(29_000)
    assert world.supervisors.asks == []
    await world.clock.advance_ms(3_000)
    await until(lambda: world.supervisors.asks)
    assert world.supervisors.asks[0] == ("7-1", StopReason.LEASE, 10_000)
    world.supervisors.asked("7-1", StopReason.LEASE)
    await world.clock.advance_ms(5_000)
    await until(lambda: len(world.launcher._journal.book.runs) == 1)
    world.bus.reconnect()
    await world.clock.advance_ms(6_000)
    await until(lambda: world.heard(RunExited, "8-1"))
    assert world.heard(RunExited, "8-1")[0].asked is StopReason.LEASE
    await world.send(start("8-1"))
    assert {plan.run_id for plan in world.supervisors.plans} == {"7-1"}


async def test_nothing_starts_once_the_lease_is_over(world, monkeypatch):
    await world.send(prepare())
    monkeypatch.setattr(world.launcher._keeper, "_is_cut_off", lambda: True)
    await world.send(start())
    await world.told()
    assert world.supervisors.plans == []
    assert world.heard(RunExited)[0].asked is StopReason.LEASE


async def test_shutting_down_waits_for_the_runs_it_stops(tmp_path):
    from tests.unit.launcher.support import World

    world = World(tmp_path, on_exit="stop")
    await world.up()
    await world.send(prepare(), start(), prepare("8-1", worker(0, "G1")))
    world.supervisors.up("7-1")
    await world.ring("7-1")
    world.stop.set()
    await until(lambda: world.supervisors.asks)
    assert world.supervisors.asks == [("7-1", StopReason.SHUTDOWN, 60_000)]
    assert not world.task.done()
    world.supervisors.asked("7-1", StopReason.SHUTDOWN)
    world.supervisors.end("7-1", 75)
    world.launcher.on_ring("7-1")
    await until(lambda: world.heard(RunExited, "7-1"))
    await world.clock.advance_ms(100)
    await world.task
    assert world.heard(RunExited, "8-1")[0].asked is StopReason.SHUTDOWN


async def test_shutting_down_gives_up_on_what_does_not_end(tmp_path, caplog):
    from tests.unit.launcher.support import World

    world = World(tmp_path, on_exit="stop")
    await world.up()
    await world.send(prepare(), start())
    world.supervisors.up("7-1")
    await world.ring("7-1")
    world.stop.set()
    await until(lambda: world.supervisors.asks)
    for _ in range(20):
        await world.clock.advance_ms(4_000)
    await until(world.task.done)
    assert "left behind at exit: runs 7-1" in caplog.text


@pytest.mark.parametrize("kept", [1, 1_000])
async def test_folders_of_old_runs_are_removed(tmp_path, kept):
    from tests.unit.launcher.support import World

    world = World(tmp_path, kept_run_folders=kept)
    for name in ("1-1", "2-1", "3-1"):
        (world.config.runs_dir / name).mkdir()
    await world.up()
    await world.send(prepare("3-1"), start("3-1"))
    world.supervisors.note("3-1", Supervising(pid=1))
    for _ in range(61):
        await world.clock.advance_ms(1_000)
    names = lambda: {path.name for path in world.config.runs_dir.iterdir()}  # noqa: E731
    await until(lambda: len(names()) == min(3, kept + 1))
    assert names() >= {"3-1"}
    await world.down()


async def test_a_whole_gang_starts_without_being_told_again(world):
    ps = TaskPlacement(role="ps", index=0, rank=1, node=NODE)
    await world.send(whole_gang(prepare("7-1", worker(0, "G0"), ps)))
    assert world.heard(RunPrepared) == []
    (plan,) = world.supervisors.plans
    tf_config = json.loads(plan.tasks[1].env["TF_CONFIG"])
    assert tf_config["task"] == {"type": "ps", "index": 0}
    first = world.config.first_port
    assert tf_config["cluster"] == {
        "worker": [f"127.0.0.1:{first}"],
        "ps": [f"127.0.0.1:{first + 1}"],
    }
    world.supervisors.up("7-1")
    await world.ring("7-1")
    assert [said.run_id for said in world.heard(RunStarted)] == ["7-1"]


async def test_a_whole_gang_kept_by_a_killed_launcher_is_started_by_the_next(world):
    await world.send(whole_gang(prepare()))
    await world.kill()
    world.supervisors.plans.clear()
    await world.up()
    await world.clock.advance_ms(2_000)
    assert {plan.run_id for plan in world.supervisors.plans} == {"7-1"}


async def test_a_launcher_that_stops_says_so_before_its_runs_end(world):
    await world.send(prepare())
    await world.down()
    assert isinstance(world.heard()[-1], LauncherLeft)
