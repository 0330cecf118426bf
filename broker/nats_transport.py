"""Below the NATS client: when to give up a socket, and when to try the next server."""

import random
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

_TCP_USER_TIMEOUT_MS = 4_000
_FIRST_DELAY_S = 0.02
_LONGEST_DELAY_S = 2.0


class ConnectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a connection is. A stalled server is noticed after at most both periods."""

    connect_timeout_ms: int = 10_000
    watch_every_ms: int = 1_000
    stall_ms: int = 3_000
    """Without any sign of life for this long, a connection that awaits a pong is given up."""


def _native_transport(client: Any) -> Any:
    """The asyncio transport of a client; nats-py offers no public way to it."""
    writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
    return getattr(writer, "transport", None)


def abort_transport(client: Any, *, only_if_closing: bool = False) -> None:
    """Drop a socket at once; closing politely waits for a peer that may be gone."""
    transport = _native_transport(client)
    if transport is not None and (transport.is_closing() or not only_if_closing):
        transport.abort()


def notice_dead_peers(client: Any) -> None:
    """Let the kernel end a connection whose peer leaves our data unacknowledged."""
    transport = _native_transport(client)
    raw = transport.get_extra_info("socket") if transport is not None else None
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)


def choose_server(servers: list[Any], _info: Mapping[str, Any]) -> tuple[Any, float]:
    """Try the server that failed least, after a delay that grows and is never the same twice."""
    server = min(servers, key=lambda s: (s.reconnects, random.random()))  # noqa: S311
    delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** min(server.reconnects, 10))
    return server, delay_s * random.uniform(0.5, 1.5)  # noqa: S311
