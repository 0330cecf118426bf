"""Ports for the tasks of runs: reserved by binding, held until the start, never given out twice.

While a run is prepared its TCP ports are bound, so nobody else can take them. They must be let go
just before its tasks bind them; the claim that keeps other launchers of the machine away is a UDP
socket of the same number, which stays until the run is over.
"""

import socket
from collections.abc import Iterable
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortPool:
    """The ports of one launcher, from ``first`` to ``last``, without the kernel's own range."""

    def __init__(self, first: int, last: int, *, ephemeral: range | None = None) -> None:
        kernels = ephemeral_ports() if ephemeral is None else ephemeral
        self._ports = [port for port in range(first, last + 1) if port not in kernels]
        self._next = 0
        self._claims: dict[str, dict[int, socket.socket]] = {}
        self._held: dict[str, list[socket.socket]] = {}

    @property
    def in_use(self) -> int:
        """Number of ports that runs have."""
        return sum(len(claims) for claims in self._claims.values())

    def reserve(self, run_id: str, tasks: Iterable[str]) -> dict[str, int] | None:
        """Reserve one port for each task, or none at all (None) where the range is used up."""
        ports: dict[str, int] = {}
        for task in tasks:
            port = self._reserve_one(run_id)
            if port is None:
                self.release(run_id)
                return None
            ports[task] = port
        return ports

    def retake(self, run_id: str, ports: Iterable[int], *, hold: bool) -> bool:
        """Reserve again the ports an earlier launcher had given to the run.

        With ``hold`` the run is not started yet, so they must be free; else its tasks use them.
        """
        taken = [
            self._claim(run_id, port) and (not hold or self._hold(run_id, port)) for port in ports
        ]
        if hold and not all(taken):
            self.release(run_id)
            return False
        return True

    def let_go(self, run_id: str) -> None:
        """Unbind the ports, for the tasks of the run to bind them now."""
        for held in self._held.pop(run_id, []):
            held.close()

    def release(self, run_id: str) -> None:
        """Give the ports of the run back."""
        self.let_go(run_id)
        for claim in self._claims.pop(run_id, {}).values():
            claim.close()

    def close(self) -> None:
        for run_id in list(self._claims):
            self.release(run_id)

    def _reserve_one(self, run_id: str) -> int | None:
        for _ in self._ports:
            port = self._ports[self._next]
            self._next = (self._next + 1) % len(self._ports)
            if not self._claim(run_id, port):
                continue
            if self._hold(run_id, port):
                return port
            self._claims[run_id].pop(port).close()
        return None

    def _claim(self, run_id: str, port: int) -> bool:
        claim = _bound(socket.SOCK_DGRAM, "127.0.0.1", port)
        if claim is None:
            return False
        self._claims.setdefault(run_id, {})[port] = claim
        return True

    def _hold(self, run_id: str, port: int) -> bool:
        held = _bound(socket.SOCK_STREAM, "", port)
        if held is None:
            return False
        self._held.setdefault(run_id, []).append(held)
        return True


def ephemeral_ports() -> range:
    """Return the range from which the kernel gives ports to outgoing connections."""
    try:
        first, last = _EPHEMERAL.read_text().split()
    except OSError:
        return range(0)
    return range(int(first), int(last) + 1)


def _bound(kind: socket.SocketKind, host: str, port: int) -> socket.socket | None:
    """Return a socket bound to the port, None where it is taken."""
    bound = socket.socket(socket.AF_INET, kind)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        return None
    return bound
