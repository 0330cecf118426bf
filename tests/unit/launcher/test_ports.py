"""Ports are bound until the start, distinct, and given back."""

import socket

import pytest

from launcher.ports import PortPool, ephemeral_ports


@pytest.fixture
def pool():
    made = PortPool(24_100, 24_103)
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


def test_a_reserved_port_is_bound_until_it_is_let_go(pool):
    ports = pool.reserve("1-1", ["worker-0", "worker-1"])
    assert ports == {"worker-0": 24_100, "worker-1": 24_101}
    assert not is_free(24_100)
    pool.let_go("1-1")
    assert is_free(24_100)
    assert pool.reserve("2-1", ["worker-0"]) == {"worker-0": 24_102}


def test_all_or_nothing_is_reserved_and_released_ports_come_back(pool):
    assert pool.reserve("1-1", ["a", "b", "c"]) is not None
    assert pool.reserve("2-1", ["a", "b"]) is None
    assert pool.in_use == 3
    pool.release("1-1")
    assert pool.reserve("2-1", ["a", "b", "c", "d"]) is not None
    assert pool.in_use == 4


def test_ports_of_other_programs_and_launchers_are_passed_over(pool):
    other = PortPool(24_100, 24_103)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 24_100))
        listener.listen()
        other.reserve("1-1", ["a"])
        other.let_go("1-1")
        assert pool.reserve("1-1", ["a"]) == {"a": 24_102}
    other.close()


def test_the_kernels_own_range_is_never_used():
    first = ephemeral_ports().start
    pool = PortPool(first - 1, first + 5)
    ports = pool.reserve("1-1", ["a"])
    assert ports in ({"a": first - 1}, None)
    assert pool.reserve("2-1", ["a"]) is None
    pool.close()
    assert PortPool(24_100, 24_103, ephemeral=range(24_000, 25_000)).reserve("1-1", ["a"]) is None


def test_an_adopted_run_keeps_its_ports(pool):
    assert pool.retake("1-1", [24_100], hold=True)
    assert not is_free(24_100)
    assert pool.retake("2-1", [24_101], hold=False)
    assert is_free(24_101)
    assert pool.reserve("3-1", ["a"]) == {"a": 24_102}
    assert not pool.retake("4-1", [24_102, 24_103], hold=True)
    assert pool.reserve("5-1", ["a"]) == {"a": 24_103}
