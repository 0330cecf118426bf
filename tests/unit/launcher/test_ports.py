"""Ports are bound until the start, distinct, and given back."""

import socket

import pytest

from launcher.ports import PortPool, ephemeral_ports
from tests.free_ports import free_ports


@pytest.fixture
def ports():
    return free_ports(4)


@pytest.fixture
def pool(ports):
    made = PortPool(ports[0], ports[-1])
    yield made
    made.close()


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0 and _binds(port)


def _binds(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_a_reserved_port_is_bound_until_it_is_let_go(pool, ports):
    reserved = pool.reserve("1-1", ["worker-0", "worker-1"])
    assert reserved == {"worker-0": ports[0], "worker-1": ports[1]}
    assert not is_free(ports[0])
    pool.let_go("1-1")
    assert is_free(ports[0])
    assert pool.reserve("2-1", ["worker-0"]) == {"worker-0": ports[2]}


def test_all_or_nothing_is_reserved_and_released_ports_come_back(pool):
    assert pool.reserve("1-1", ["a", "b", "c"]) is not None
    assert pool.reserve("2-1", ["a", "b"]) is None
    assert pool.in_use == 3
    pool.release("1-1")
    assert pool.reserve("2-1", ["a", "b", "c", "d"]) is not None
    assert pool.in_use == 4


def test_ports_of_other_programs_and_launchers_are_passed_over(pool, ports):
    other = PortPool(ports[0], ports[-1])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports[0]))
        listener.listen()
        other.reserve("1-1", ["a"])
        other.let_go("1-1")
        assert pool.reserve("1-1", ["a"]) == {"a": ports[2]}
    other.close()


def test_the_kernels_own_range_is_never_used():
    first = ephemeral_ports().start
    pool = PortPool(first - 1, first + 5)
    assert pool.reserve("1-1", ["a"]) in ({"a": first - 1}, None)
    assert pool.reserve("2-1", ["a"]) is None
    pool.close()
    only_kernels = PortPool(first, first + 3, ephemeral=range(first, first + 10))
    assert only_kernels.reserve("1-1", ["a"]) is None


def test_an_adopted_run_keeps_its_ports(pool, ports):
    assert pool.retake("1-1", [ports[0]], hold=True)
    assert not is_free(ports[0])
    assert pool.retake("2-1", [ports[1]], hold=False)
    assert is_free(ports[1])
    assert pool.reserve("3-1", ["a"]) == {"a": ports[2]}
    assert not pool.retake("4-1", [ports[2], ports[3]], hold=True)
    assert pool.reserve("5-1", ["a"]) == {"a": ports[3]}
