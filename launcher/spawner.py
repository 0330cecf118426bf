"""The fork server: a small process that has a supervisor at work on each plan it is sent.

A plan comes as a line ``<run_id> <JSON>`` on standard input, a Unix socket. Starting an
interpreter would cost fifty milliseconds, a fork five, a supervisor that is there already nothing:
one whose run has ended with nothing left offers itself for the next plan. It waits for it on its
channel to this process; whoever is idle too long, has had too many runs or is one too many finds
the channel closed, and ends. So do all that are idle when the launcher closes the socket, and with
it this process ends; the others first see to their runs.

Lines on the socket tell what went wrong: ``unforked <run_id>``, there was no process for a
supervisor; ``gone <run_id>``, a supervisor has ended with its run or over it.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import time
from typing import NoReturn

from launcher.control import ControlPipe
from launcher.supervisor import Supervisor

UNFORKED, GONE = b"unforked", b"gone"
_FREE = b"."
_IDLE_LIMIT = 16
_IDLE_LIMIT_S = 60.0
_RUNS_LIMIT = 200
_SEND_LIMIT_S = 1.0
_READ_BYTES = 1024 * 1024


class _Channel:
    """This process's end of the channel to a supervisor; ``run_id`` is empty while it is idle."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        end.settimeout(_SEND_LIMIT_S)
        self.end = end
        self.pid = pid
        self.run_id = b""
        self.runs = 0
        self.idle_since_s = 0.0

    def begin(self, run_id: bytes) -> None:
        self.run_id = run_id
        self.runs += 1


class Spawner:
    """Who supervises what. Every supervisor is in ``_channels``, the idle ones in ``_idle``, too.

    The one that has been idle for the shortest time gets the next plan, so that the others may go.
    """

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._unread = b""
        self._channels: dict[int, _Channel] = {}
        self._idle: list[_Channel] = []
        self._poll = select.poll()
        self._poll.register(launcher, select.POLLIN)

    def turn(self) -> bool:
        """Wait for something and deal with it; return False once the launcher is gone."""
        is_launcher_there = True
        for file, _ in self._poll.poll(self._wait_ms()):
            if file == self._launcher.fileno():
                is_launcher_there = self._read_plans()
            elif channel := self._channels.get(file):
                self._hear(channel)
        while self._idle and self._wait_ms() == 0:
            self._drop(self._idle[0])
        return is_launcher_there

    def _wait_ms(self) -> float | None:
        if not self._idle:
            return None
        idle_s = time.monotonic() - self._idle[0].idle_since_s
        return max(0.0, (_IDLE_LIMIT_S - idle_s) * 1000)

    def _read_plans(self) -> bool:
        data = self._launcher.recv(_READ_BYTES)
        *plans, self._unread = (self._unread + data).split(b"\n")
        for line in plans:
            self._have_supervised(*line.split(b" ", 1))
        return bool(data)

    def _have_supervised(self, run_id: bytes, plan: bytes) -> None:
        while self._idle:
            channel = self._idle.pop()
            try:
                channel.end.sendall(plan + b"\n")
            except OSError:
                self._drop(channel)
            else:
                channel.begin(run_id)
                return
        self._fork(run_id, plan)

    def _fork(self, run_id: bytes, plan: bytes) -> None:
        ends: tuple[socket.socket, ...] = ()
        try:
            ends = socket.socketpair()
            pid = os.fork()
        except OSError:
            for end in ends:
                end.close()
            self._tell(UNFORKED, run_id)
            return
        ours, theirs = ends
        if pid == 0:
            _supervise(plan, theirs)
        theirs.close()
        channel = _Channel(ours, pid)
        channel.begin(run_id)
        self._channels[ours.fileno()] = channel
        self._poll.register(ours, select.POLLIN)

    def _hear(self, channel: _Channel) -> None:
        try:
            is_there = channel.end.recv(1, socket.MSG_DONTWAIT) == _FREE
        except BlockingIOError:
            return
        except OSError:
            is_there = False
        if not is_there:
            self._drop(channel)
            return
        channel.run_id = b""
        channel.idle_since_s = time.monotonic()
        self._idle.append(channel)
        if channel.runs >= _RUNS_LIMIT or len(self._idle) > _IDLE_LIMIT:
            self._drop(channel)

    def _drop(self, channel: _Channel) -> None:
        if channel in self._idle:
            self._idle.remove(channel)
        self._poll.unregister(channel.end)
        del self._channels[channel.end.fileno()]
        channel.end.close()
        if channel.run_id:
            _await_end(channel.pid)
            self._tell(GONE, channel.run_id)

    def _tell(self, what: bytes, run_id: bytes) -> None:
        self._launcher.sendall(b"%b %b\n" % (what, run_id))


def main() -> None:
    """Serve until the launcher is gone."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    spawner = Spawner(socket.socket(fileno=os.dup(0)))
    try:
        while spawner.turn():
            pass
    except ConnectionError:
        return


def _supervise(plan: bytes, channel: socket.socket) -> NoReturn:
    """Live as a supervisor: no tie to the launcher, its terminal or its streams is left."""
    try:
        os.setsid()
        _keep_only(channel.fileno())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        plans = channel.makefile("rb")
        control = ControlPipe()
        while _see_to(plan, control):
            channel.sendall(_FREE)
            plan = plans.readline()
            if not plan.endswith(b"\n"):
                break
    finally:
        os._exit(0)


def _await_end(pid: int) -> None:
    """Wait for a process that is ending to have released its locks, by which it counts as alive."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _keep_only(file: int) -> None:
    os.closerange(3, file)
    os.closerange(file + 1, os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


def _see_to(plan: bytes, control: ControlPipe) -> bool:
    """Supervise a run to its end; return whether this process is fit for another one."""
    settings = json.loads(plan)
    try:
        return Supervisor(settings, control).run()
    except Exception:  # noqa: BLE001 the edge of the process: tell why in the run's folder
        import traceback  # noqa: PLC0415 seldom needed

        with open(f"{settings['run_dir']}/supervisor.err", "w") as file:
            traceback.print_exc(file=file)
        return False


if __name__ == "__main__":
    main()
