"""The Prometheus endpoint of a service, on the loopback address only."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server


@contextmanager
def served(registry: CollectorRegistry, port: int) -> Iterator[None]:
    """Answer scrapes while the block runs; port 0 serves nothing.

    Raises `OSError` when the port is taken.
    """
    if port == 0:
        yield
        return
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
