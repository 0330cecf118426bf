"""Who is silent, heard and lost, and when the judge doubts itself."""

import pytest

from broker.schemas.node import Heartbeat, NodeHeard, NodeLost, NodeSilent
from scheduler_svc.liveness import Liveness

SUSPECT_MS, LOST_MS, TICK_MS = 6_000, 45_000, 1_000


class World:
    """Nodes that beat or not, a connection that is up or not, and a core that obeys."""

    def __init__(self, *nodes: str) -> None:
        self.now_ms = 0
        self.liveness = Liveness(suspect_after_ms=SUSPECT_MS, lost_after_ms=LOST_MS, epoch=7)
        self.beating = set(nodes)
        self.is_connected = True
        self.obeys = True
        self.sequence = 0
        self.verdicts: list[tuple[int, object]] = []
        self.ids: list[str] = []
        for node in nodes:
            self.liveness.node_changed(node, "up", 0)

    def run(self, duration_ms: int, tick_ms: int = TICK_MS) -> list[object]:
        """Let time pass; return the messages of the verdicts."""
        told = []
        for _ in range(duration_ms // tick_ms):
            self.now_ms += tick_ms
            self.sequence += 1
            if self.is_connected:
                for node in sorted(self.beating):
                    self.beat(node)
            for verdict in self.liveness.check(self.now_ms, is_connected=self.is_connected):
                told.append(verdict.message)
                self.verdicts.append((self.now_ms, verdict.message))
                self.ids.append(verdict.message_id)
                self.obey(verdict.message)
        return told

    def beat(self, node: str) -> bool:
        heartbeat = Heartbeat(node=node, boot_id="b", sequence=self.sequence, at_ms=self.now_ms)
        return self.liveness.heard(heartbeat, self.now_ms)

    def obey(self, message) -> None:
        states = {NodeSilent: "silent", NodeHeard: "up", NodeLost: "lost"}
        if self.obeys:
            self.liveness.node_changed(message.node, states[type(message)], self.now_ms)


def kinds(messages) -> list[type]:
    return [type(message) for message in messages]


def test_nodes_that_beat_are_left_alone():
    assert World("a", "b", "c").run(120_000) == []


def test_a_node_is_silent_and_then_lost_after_the_set_times():
    world = World("a", "b", "c")
    world.run(10_000)
    world.beating.remove("a")
    world.run(60_000)
    (silent_at_ms, silent), (lost_at_ms, lost) = world.verdicts
    assert (silent_at_ms, silent) == (16_000, NodeSilent(node="a", silent_ms=SUSPECT_MS))
    assert (lost_at_ms, lost) == (55_000, NodeLost(node="a", silent_ms=LOST_MS))


def test_a_silent_node_that_beats_again_is_heard():
    world = World("a", "b")
    world.beating.remove("a")
    world.run(10_000)
    world.beating.add("a")
    assert world.run(60_000) == [NodeHeard(node="a")]


def test_a_node_that_joined_and_never_beat_counts_from_its_join():
    world = World("b")
    world.run(10_000)
    world.liveness.node_changed("a", "up", world.now_ms)
    assert world.run(5_000) == []
    assert kinds(world.run(1_000)) == [NodeSilent]
    assert world.ids == ["silent/a/term-7/2"]


def test_a_lost_node_that_beats_again_is_heard():
    world = World("a")
    world.beating.clear()
    world.run(60_000)
    world.beating.add("a")
    assert kinds(world.run(3_000)) == [NodeHeard]


def test_a_node_known_as_silent_by_an_earlier_leader_is_lost_after_a_full_wait():
    world = World("b")
    world.liveness.node_changed("a", "silent", 0)
    assert world.run(LOST_MS - TICK_MS) == []
    assert kinds(world.run(TICK_MS)) == [NodeLost]


@pytest.mark.parametrize("state", ["left", "lost"])
def test_a_node_that_left_or_was_given_up_is_not_judged(state):
    world = World("a", "b")
    world.beating.remove("a")
    world.liveness.node_changed("a", state, 0)
    assert world.run(120_000) == []


def test_a_node_that_joins_again_is_judged_anew_under_another_id():
    world = World("b")
    for _ in range(2):
        world.liveness.node_changed("a", "left", world.now_ms)
        world.liveness.node_changed("a", "up", world.now_ms)
        assert kinds(world.run(SUSPECT_MS)) == [NodeSilent]
    assert len(set(world.ids)) == 2


def test_heartbeats_of_unknown_nodes_are_told_apart():
    world = World("a")
    assert world.beat("a")
    assert not world.beat("stranger")


def test_a_verdict_is_repeated_under_its_id_until_the_core_acts():
    world = World("a", "b")
    world.beating.remove("a")
    world.obeys = False
    assert len(world.run(9_000)) == 4
    assert len(set(world.ids)) == 1


def test_two_silences_of_a_node_have_two_ids():
    world = World("a", "b")
    for _ in range(2):
        world.beating.discard("a")
        world.run(10_000)
        world.beating.add("a")
        world.run(10_000)
    assert kinds(message for _, message in world.verdicts) == [NodeSilent, NodeHeard] * 2
    assert len(set(world.ids)) == 4


def test_most_nodes_silent_at_once_is_doubted_until_they_are_heard_again():
    world = World("a", "b", "c", "d")
    world.run(10_000)
    world.beating -= {"a", "b", "c"}
    assert world.run(30_000) == []
    assert world.liveness.is_holding
    world.beating |= {"a", "b", "c"}
    assert world.run(60_000) == []
    assert not world.liveness.is_holding


def test_most_nodes_silent_for_a_full_wait_are_judged_after_all():
    world = World("a", "b", "c", "d")
    world.beating -= {"a", "b", "c"}
    world.run(SUSPECT_MS + LOST_MS - TICK_MS)
    assert world.verdicts == []
    assert kinds(world.run(TICK_MS)) == [NodeSilent] * 3
    assert kinds(world.run(TICK_MS)) == [NodeLost] * 3


def test_nodes_that_stay_silent_when_the_others_return_are_counted_from_the_doubt():
    world = World("a", "b", "c", "d", "e")
    world.beating -= {"a", "b", "c"}
    world.run(20_000)
    world.beating |= {"b", "c"}
    assert world.run(1_000) == [NodeSilent(node="a", silent_ms=15_000)]
    world.run(LOST_MS)
    assert world.verdicts[-1] == (SUSPECT_MS + LOST_MS, NodeLost(node="a", silent_ms=LOST_MS))


def test_half_of_the_nodes_is_no_reason_to_doubt():
    world = World("a", "b", "c", "d")
    world.beating -= {"a", "b"}
    assert kinds(world.run(SUSPECT_MS)) == [NodeSilent] * 2


def test_two_nodes_are_too_few_to_doubt():
    world = World("a", "b")
    world.beating.clear()
    assert kinds(world.run(SUSPECT_MS)) == [NodeSilent] * 2


def test_nodes_that_fall_silent_one_after_the_other_are_judged():
    world = World("a", "b", "c")
    for node in ("a", "b", "c"):
        world.beating.remove(node)
        assert NodeSilent in kinds(world.run(15_000))


def test_nobody_is_judged_while_our_own_connection_is_down():
    world = World("a", "b")
    world.run(10_000)
    world.is_connected = False
    assert world.run(300_000) == []
    world.is_connected = True
    assert world.run(60_000) == []


def test_a_node_gone_during_our_disconnection_is_judged_from_its_end():
    world = World("a", "b")
    world.is_connected = False
    world.beating.remove("a")
    world.run(300_000)
    world.is_connected = True
    world.run(LOST_MS)
    (silent_at_ms, silent), (lost_at_ms, lost) = world.verdicts
    assert (silent_at_ms, type(silent)) == (306_000, NodeSilent)
    assert (lost_at_ms, type(lost)) == (345_000, NodeLost)


def test_a_silent_node_is_not_called_heard_because_we_were_blind():
    world = World("a", "b")
    world.beating.remove("a")
    world.run(10_000)
    world.is_connected = False
    world.run(10_000)
    world.is_connected = True
    assert world.run(10_000) == []


def test_a_judge_that_did_not_look_for_a_while_doubts_itself():
    world = World("a", "b")
    world.run(10_000)
    world.now_ms += 100_000
    assert world.liveness.check(world.now_ms, is_connected=True) == []
    assert world.liveness.is_holding
    assert world.run(30_000) == []
    assert not world.liveness.is_holding
