"""Ports for the tests of one process: tests run side by side, on machines with other programs."""

import os
import socket

_FIRST = 20_000
_LAST = 31_999
_BLOCK = 100


def free_ports(count: int) -> range:
    """Return ``count`` ports in a row, at most 100, that nobody has bound, below the kernel's own.

    Processes started one after another look in different blocks, so they don't meet.
    """
    blocks = (_LAST + 1 - _FIRST) // _BLOCK
    for step in range(blocks):
        first = _FIRST + (os.getpid() + step) % blocks * _BLOCK
        if all(map(_is_free, range(first, first + count))):
            return range(first, first + count)
    raise OSError(f"no {count} free ports in a row from {_FIRST} to {_LAST}")


def _is_free(port: int) -> bool:
    for kind, host in ((socket.SOCK_STREAM, ""), (socket.SOCK_DGRAM, "127.0.0.1")):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True
