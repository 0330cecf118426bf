"""Who supervises a run: an idle supervisor if there is one, else a new one. Nothing is forked."""

import socket

import pytest

from launcher import spawner as spawner_module
from launcher.spawner import Spawner


class Supervisors:
    """The other side of the spawner's channels, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[socket.socket] = []
        self.now_s = 0.0
        self.launcher, ours = socket.socketpair()
        self.launcher.setblocking(False)
        self._ours = ours
        self._pair = socket.socketpair
        monkeypatch.setattr(spawner_module.socket, "socketpair", self._new_channel)
        monkeypatch.setattr(spawner_module.os, "fork", lambda: 1)
        monkeypatch.setattr(spawner_module.os, "waitpid", self._wait)
        monkeypatch.setattr(spawner_module.time, "monotonic", lambda: self.now_s)
        self.spawner = Spawner(ours)

    def _new_channel(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = self._pair()
        self.ends.append(theirs.dup())
        self.ends[-1].setblocking(False)
        return ours, theirs

    def _wait(self, _pid: int, _options: int) -> None:
        """As where SIGCHLD is ignored: it returns late, and always so."""
        raise ChildProcessError

    def plan(self, *run_ids: str) -> None:
        self.launcher.sendall(b"".join(b"%b plan of it\n" % name.encode() for name in run_ids))
        assert self.spawner.turn()

    def offer(self, *numbers: int) -> None:
        for number in numbers:
            self.ends[number].send(b".")
            self.spawner.turn()

    def has_ended(self, number: int) -> bool:
        """Whether the supervisor was told to end."""
        try:
            return self.ends[number].recv(1_000, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False

    def heard(self) -> bytes:
        try:
            return self.launcher.recv(1_000)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        for end in (self.launcher, self._ours, *self.ends):
            end.close()
        for channel in self.spawner._channels.values():
            channel.end.close()


@pytest.fixture
def supervisors(monkeypatch):
    made = Supervisors(monkeypatch)
    yield made
    made.close()


def test_the_last_idle_supervisor_gets_the_plan_and_one_is_forked_where_none_is_idle(supervisors):
    supervisors.plan("1-1", "2-1")
    supervisors.offer(1, 0)
    supervisors.plan("3-1")
    assert len(supervisors.ends) == 2
    assert supervisors.ends[0].recv(1_000) == b"plan of it\n"
    supervisors.plan("4-1", "5-1")
    assert len(supervisors.ends) == 3
    assert supervisors.ends[1].recv(1_000) == b"plan of it\n"
    assert supervisors.heard() == b""


def test_a_plan_cut_into_pieces_is_handed_on_whole(supervisors):
    for piece in (b"1-1 pl", b"an\n2-1", b" plan\n"):
        supervisors.launcher.sendall(piece)
        assert supervisors.spawner.turn()
    assert len(supervisors.ends) == 2
    assert {channel.run_id for channel in supervisors.spawner._channels.values()} == {
        b"1-1",
        b"2-1",
    }


def test_a_supervisor_that_goes_during_its_run_is_named_and_an_idle_one_is_not(supervisors):
    supervisors.plan("1-1", "2-1")
    supervisors.offer(0)
    for end in supervisors.ends:
        end.close()
    supervisors.spawner.turn()
    assert supervisors.heard() == b"gone 2-1\n"


def test_a_supervisor_that_died_over_a_plan_it_had_not_read_is_named(supervisors):
    supervisors.plan("1-1")
    supervisors.offer(0)
    supervisors.plan("2-1")
    supervisors.ends[0].close()
    supervisors.spawner.turn()
    assert supervisors.heard() == b"gone 2-1\n"


def test_a_plan_for_an_idle_supervisor_that_is_dead_goes_to_another(supervisors):
    supervisors.plan("1-1", "2-1")
    supervisors.offer(0, 1)
    supervisors.ends[1].close()
    supervisors.spawner._have_supervised(b"3-1", b"plan of it")
    assert supervisors.ends[0].recv(1_000) == b"plan of it\n"
    assert supervisors.heard() == b""


def test_a_run_for_which_no_process_can_be_forked_is_named(supervisors, monkeypatch):
    def fail() -> int:
        raise BlockingIOError(11, "resource temporarily unavailable")

    monkeypatch.setattr(spawner_module.os, "fork", fail)
    supervisors.plan("1-1")
    assert supervisors.heard() == b"unforked 1-1\n"


def test_supervisors_end_that_are_idle_too_long(supervisors):
    supervisors.plan("1-1", "2-1")
    supervisors.offer(0)
    supervisors.now_s = 30.0
    supervisors.offer(1)
    supervisors.now_s = 60.0
    supervisors.spawner.turn()
    assert [supervisors.has_ended(number) for number in (0, 1)] == [True, False]


def test_only_so_many_supervisors_idle(supervisors, monkeypatch):
    monkeypatch.setattr(spawner_module, "_IDLE_LIMIT", 2)
    supervisors.plan("1-1", "2-1", "3-1")
    supervisors.offer(0, 1, 2)
    assert [supervisors.has_ended(number) for number in range(3)] == [False, False, True]
    assert supervisors.heard() == b""


def test_a_supervisor_ends_after_so_many_runs(supervisors, monkeypatch):
    monkeypatch.setattr(spawner_module, "_RUNS_LIMIT", 2)
    supervisors.plan("1-1")
    supervisors.offer(0)
    assert not supervisors.has_ended(0)
    supervisors.plan("2-1")
    assert supervisors.ends[0].recv(1_000) == b"plan of it\n"
    supervisors.offer(0)
    assert supervisors.has_ended(0)
    assert supervisors.heard() == b""


def test_the_spawner_ends_with_the_launcher(supervisors):
    supervisors.launcher.close()
    assert not supervisors.spawner.turn()
