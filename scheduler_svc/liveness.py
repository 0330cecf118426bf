"""Which nodes are silent, heard again or lost, judged from heartbeats; pure, time is passed in.

Before it judges a node, it doubts itself: while the own connection is down, after it was not
called for a while, or when most nodes fall silent together, it holds its judgement until half of
the nodes are heard again or one full ``lost_after_ms`` has passed. Times are monotonic
milliseconds. A verdict is repeated, with the same message id, until the core has acted on it.
"""

import msgspec

from broker.schemas.node import Heartbeat, NodeHeard, NodeLost, NodeSilent

FEWEST_NODES_FOR_DOUBT = 3


class Verdict(msgspec.Struct, frozen=True):
    """An input for the log, and the message id that makes repeating it harmless."""

    message: NodeSilent | NodeHeard | NodeLost
    message_id: str


class _Node:
    """What is known of one node; ``state`` is the core's word."""

    def __init__(self, now_ms: int, mark: str) -> None:
        self.state = ""
        self.counted_from_ms = now_ms
        """Silence is counted from here: the last heartbeat, or the time it joined."""
        self.heard_ms: int | None = None
        self.mark = mark
        """Tells this silence from an earlier one of the same node."""


class Liveness:
    """Judges all nodes of the core's views by the heartbeats it is fed."""

    def __init__(self, *, suspect_after_ms: int, lost_after_ms: int, epoch: int) -> None:
        self._suspect_after_ms = suspect_after_ms
        self._lost_after_ms = lost_after_ms
        self._epoch = epoch
        self._nodes: dict[str, _Node] = {}
        self._joins = 0
        self._held_since_ms: int | None = None
        self._checked_ms: int | None = None

    @property
    def is_holding(self) -> bool:
        """Whether it doubts itself and judges nobody."""
        return self._held_since_ms is not None

    def node_changed(self, name: str, state: str, now_ms: int) -> None:
        """Take over the state of a node's view; one that comes up is counted from now."""
        node = self._nodes.setdefault(name, _Node(now_ms, ""))
        if state == "up" and node.state != "up":
            self._joins += 1
            node.counted_from_ms = now_ms
            node.mark = f"term-{self._epoch}/{self._joins}"
        node.state = state

    def heard(self, heartbeat: Heartbeat, now_ms: int) -> bool:
        """Note a heartbeat; False if no view tells of such a node."""
        node = self._nodes.get(heartbeat.node)
        if node is None:
            return False
        node.counted_from_ms = node.heard_ms = now_ms
        node.mark = f"{heartbeat.boot_id}/{heartbeat.sequence}/{heartbeat.at_ms}"
        return True

    def check(self, now_ms: int, *, is_connected: bool) -> list[Verdict]:
        """Judge all nodes; call it several times in each ``suspect_after_ms``."""
        if not is_connected or self._looked_away(now_ms) or self._fell_silent_together(now_ms):
            self._held_since_ms = now_ms
        self._checked_ms = now_ms
        if self._held_since_ms is not None and not self._trusts_itself_again(now_ms):
            return []
        verdicts = (self._judge(name, node, now_ms) for name, node in self._nodes.items())
        return [verdict for verdict in verdicts if verdict is not None]

    def _looked_away(self, now_ms: int) -> bool:
        since_ms = now_ms if self._checked_ms is None else self._checked_ms
        return now_ms - since_ms > self._suspect_after_ms // 2

    def _nodes_up(self) -> list[_Node]:
        return [node for node in self._nodes.values() if node.state == "up"]

    def _fell_silent_together(self, now_ms: int) -> bool:
        if self._held_since_ms is not None:
            return False
        silences = [now_ms - node.counted_from_ms for node in self._nodes_up()]
        if len(silences) < FEWEST_NODES_FOR_DOUBT or max(silences) < self._suspect_after_ms:
            return False
        shortest, longest = self._suspect_after_ms // 2, 2 * self._suspect_after_ms
        return 2 * sum(shortest <= silence < longest for silence in silences) > len(silences)

    def _trusts_itself_again(self, now_ms: int) -> bool:
        held_since_ms = self._held_since_ms
        assert held_since_ms is not None
        up = self._nodes_up()
        heard = sum(node.heard_ms is not None and node.heard_ms > held_since_ms for node in up)
        if 2 * heard >= len(up):
            for node in self._nodes.values():
                node.counted_from_ms = max(node.counted_from_ms, held_since_ms)
        elif now_ms - held_since_ms < self._lost_after_ms:
            return False
        self._held_since_ms = None
        return True

    def _judge(self, name: str, node: _Node, now_ms: int) -> Verdict | None:
        silent_ms = now_ms - node.counted_from_ms
        if node.state == "up" and silent_ms >= self._suspect_after_ms:
            return Verdict(NodeSilent(node=name, silent_ms=silent_ms), f"silent/{name}/{node.mark}")
        if node.state == "silent" and silent_ms >= self._lost_after_ms:
            return Verdict(NodeLost(node=name, silent_ms=silent_ms), f"lost/{name}/{node.mark}")
        is_heard = node.heard_ms is not None and now_ms - node.heard_ms < self._suspect_after_ms
        if node.state in ("silent", "lost") and is_heard:
            return Verdict(NodeHeard(node=name), f"heard/{name}/{node.mark}")
        return None
