"""A TCP proxy in front of a server that can swallow what the server says, and cut connections."""

import asyncio
import contextlib
from urllib.parse import urlsplit


class Proxy:
    """Use as an async context manager; clients connect to ``url``."""

    def __init__(self, server_url):
        self._server_port = urlsplit(server_url).port
        self._listener = None
        self._writers = []
        self._tasks = set()
        self.is_mute = False

    @property
    def url(self):
        return f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self):
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self):
        """Reset every connection that goes through here now."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, client_reader, client_writer):
        self._tasks.add(asyncio.current_task())
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers += [client_writer, server_writer]
        await asyncio.gather(
            self._copy(client_reader, server_writer, may_be_mute=False),
            self._copy(server_reader, client_writer, may_be_mute=True),
        )

    async def _copy(self, reader, writer, *, may_be_mute):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                if not (may_be_mute and self.is_mute):
                    writer.write(data)
                    await writer.drain()
        writer.close()
