"""The fork server: a small process that forks a supervisor for each plan it is sent.

Forking this process costs a millisecond; starting an interpreter would cost fifty. Plans come as
lines of JSON on standard input, a Unix socket. It ends when the launcher closes the socket; the
supervisors stay. A run that could not be forked is named in a line on the socket.
"""

import gc
import json
import os
import signal
import socket
import traceback

from launcher.supervisor import Supervisor


def main() -> None:
    """Serve until the launcher is gone."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    channel = socket.socket(fileno=os.dup(0))
    with channel.makefile("rb") as plans:
        for plan in plans:
            _fork_supervisor(plan, channel)


def _fork_supervisor(plan: bytes, channel: socket.socket) -> None:
    try:
        pid = os.fork()
    except OSError:
        channel.sendall(json.loads(plan)["run_id"].encode() + b"\n")
        return
    if pid == 0:
        _supervise(plan, channel)


def _supervise(plan: bytes, channel: socket.socket) -> None:
    """Run as a supervisor: no tie to the launcher, its terminal or its streams is left."""
    try:
        os.setsid()
        os.close(channel.fileno())
        _redirect_streams()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        settings = json.loads(plan)
        try:
            Supervisor(settings).run()
        except Exception:  # noqa: BLE001 the edge of the process: tell why in the run's folder
            with open(f"{settings['run_dir']}/supervisor.err", "w") as file:
                traceback.print_exc(file=file)
    finally:
        os._exit(0)


def _redirect_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


if __name__ == "__main__":
    main()
