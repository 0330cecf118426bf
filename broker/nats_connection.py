"""One connection to NATS that heals itself; the only module that imports the NATS client.

It works round what nats-py 2.16 gets wrong: a flush that is no barrier, callbacks that kill the
read loop, half-open sockets that nobody notices, clients that close for ever, and messages sent
while disconnected that arrive much later.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from nats import errors as nats_errors
from nats.aio.client import Client

from broker.clock import SystemClock
from broker.errors import BusError, BusUnavailableError, NoRespondersError
from broker.nats_transport import (
    ConnectOptions,
    abort_transport,
    choose_server,
    notice_dead_peers,
)

logger = logging.getLogger(__name__)

Reply = Any
"""A message of nats-py: subject, reply, data, headers (None or a mapping)."""
Callback = Callable[[Reply], Awaitable[None]]
Hook = Callable[[], Awaitable[None]]
T = TypeVar("T")

OLDEST_SERVER = (2, 11)
STATUS_HEADER = "Status"
_NO_RESPONDERS = "503"
_NO_BUFFERING = -1
_PING_INTERVAL_S = 5
_UNLIMITED = 0
_CLOSE_PATIENCE_S = 2.0


class NatsSubscription:
    """A core subscription; survives reconnects, also into a new client."""

    def __init__(self, connection: "NatsConnection", subject: str, callback: Callback) -> None:
        self._connection = connection
        self._subject = subject
        self._callback = callback
        self._native: Any = None

    async def attach(self, client: Client) -> None:
        """Subscribe at a client. Its pending limits are off: they drop silently."""
        self._native = await client.subscribe(
            self._subject,
            cb=self._callback,
            pending_msgs_limit=_UNLIMITED,
            pending_bytes_limit=_UNLIMITED,
        )

    async def unsubscribe(self) -> None:
        self._connection.forget(self)
        with contextlib.suppress(nats_errors.Error):
            await self._native.unsubscribe()


class NatsConnection:
    """Publish, subscribe and request, across reconnects; built by `open_connection`."""

    def __init__(self, url: str, name: str, options: ConnectOptions) -> None:
        self._url = url
        self._name = name
        self._options = options
        self._clock = SystemClock()
        self._client = Client()
        self._subscriptions: list[NatsSubscription] = []
        self._hooks: list[Hook] = []
        self._healed = asyncio.Event()
        self._reconnects_seen = 0
        self._is_closing = False
        self.generation = 0
        """Grows with each reconnect."""
        self._disconnected_since_ms: int | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._asking: set[asyncio.Future[Reply]] = set()

    @property
    def is_connected(self) -> bool:
        """Whether messages go out now. After a reconnect: once the hooks may run."""
        return bool(
            self._client.is_connected and self._client.stats["reconnects"] == self._reconnects_seen
        )

    @property
    def disconnected_since_ms(self) -> int | None:
        """When the loss was noticed: by the client, or by whoever asks here first."""
        if self.is_connected:
            return None
        if self._disconnected_since_ms is None:
            self._disconnected_since_ms = self._clock.monotonic_ms()
        return self._disconnected_since_ms

    async def open(self) -> None:
        """Connect, or raise `BusError` / `BusUnavailableError`."""
        await self._connect(self._options.connect_timeout_ms / 1000)
        self._watchdog = asyncio.create_task(self._watch(), name=f"watchdog of {self._url}")

    async def _connect(self, timeout_s: float) -> None:
        client = self._client
        try:
            async with asyncio.timeout(timeout_s):
                await client.connect(
                    self._url,
                    name=self._name,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                    connect_timeout=2,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.25,
                    reconnect_to_server_handler=choose_server,
                    ping_interval=_PING_INTERVAL_S,
                    max_outstanding_pings=2,
                    pending_size=_NO_BUFFERING,
                    drain_timeout=3,
                )
        except TimeoutError:
            await client.close()
            raise BusUnavailableError(
                f"no NATS server answers at {self._url!r} within {timeout_s:g} s: is it running?"
            ) from None
        except (nats_errors.Error, OSError, ValueError) as error:
            raise BusError(f"cannot connect to {self._url!r}: {error}") from error
        version = client.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            await client.close()
            raise BusError(f"server at {self._url!r} is {version}: at least 2.11 is needed")
        notice_dead_peers(self._client)

    def on_reconnect(self, hook: Hook) -> Callable[[], None]:
        """Call ``hook`` after each reconnect, before anything else is sent; return its remover."""
        self._hooks.append(hook)
        return lambda: self._hooks.remove(hook) if hook in self._hooks else None

    def spawn(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Run work that outlives its caller's cancellation, until this connection closes."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait for the connection; `BusUnavailableError` when it takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_connected:
                    self._check_open()
                    await self._healed.wait()
        except TimeoutError:
            raise BusUnavailableError(f"not connected to {self._url!r}") from None

    def _check_open(self) -> None:
        if self._is_closing:
            raise BusError(f"the connection to {self._url!r} is closed")

    async def publish(
        self,
        subject: str,
        data: bytes,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Send now and return True; return False, having sent nothing, while disconnected.

        Does not give way to other tasks, so messages go out in the order of the calls.
        """
        self._check_open()
        if not self.is_connected:
            return False
        try:
            await self._client.publish(subject, data, reply=reply, headers=headers)
        except nats_errors.MaxPayloadError as error:
            raise BusError(self._too_large(subject, data)) from error
        except (nats_errors.OutboundBufferLimitError, nats_errors.ConnectionClosedError):
            return False
        return True

    def _too_large(self, subject: str, data: bytes) -> str:
        limit = self._client.max_payload
        return f"message for {subject!r} has {len(data)} bytes: the server takes {limit}"

    async def subscribe(self, subject: str, callback: Callback) -> NatsSubscription:
        """Call a coroutine function for each message, one at a time; it must not raise."""
        subscription = NatsSubscription(self, subject, callback)
        self._subscriptions.append(subscription)
        try:
            await subscription.attach(self._client)
        except nats_errors.Error as error:
            self.forget(subscription)
            raise BusUnavailableError(f"cannot subscribe to {subject!r}: {error}") from error
        return subscription

    def forget(self, subscription: NatsSubscription) -> None:
        """Do not carry a subscription over to the next client."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def new_inbox(self) -> str:
        """Return a subject for replies that nobody else uses."""
        return str(self._client.new_inbox())

    async def request(self, subject: str, data: bytes, timeout_s: float) -> Reply:
        """Ask once; raises `NoRespondersError` or `BusUnavailableError`.

        A reconnect ends the wait, for the answer went to the old connection. The shield keeps a
        caller's cancellation from being lost in the client's ``wait_for`` (Python before 3.12).
        """
        asking = asyncio.ensure_future(self._client.request(subject, data, timeout=timeout_s))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if not asking.cancelled() or _is_being_cancelled():
                asking.cancel()
                raise
            raise BusUnavailableError(f"the connection broke before {subject!r} answered") from None
        except nats_errors.NoRespondersError:
            raise NoRespondersError(subject) from None
        except nats_errors.MaxPayloadError as error:
            raise BusError(self._too_large(subject, data)) from error
        except (nats_errors.Error, OSError) as error:
            raise BusUnavailableError(f"no answer on {subject!r}: {error}") from error

    def _end_requests(self) -> None:
        for asking in tuple(self._asking):
            asking.cancel()

    async def barrier(self, timeout_s: float = 5.0) -> None:
        """Return when what was sent before reached the server; raises `BusUnavailableError`.

        One flush is none: its PING overtakes what is buffered. A cancelled flush would stop
        the read loop when its PONG comes, so the flushes outlive a cancelled caller.
        """
        await self.wait_connected(timeout_s)
        generation = self.generation
        await asyncio.shield(self.spawn(self._flush_twice(timeout_s)))
        if not self.is_connected or generation != self.generation:
            raise BusUnavailableError("the connection broke: what was sent may be lost")

    async def _flush_twice(self, timeout_s: float) -> None:
        try:
            await self._client.flush(timeout_s)
            await self._client.flush(timeout_s)
        except nats_errors.Error as error:
            raise BusUnavailableError(f"no answer to a flush: {error}") from error

    async def close(self) -> None:
        """Send what is buffered, then disconnect for good."""
        if self._is_closing:
            return
        if self.is_connected:
            with contextlib.suppress(BusUnavailableError):
                await self.barrier(timeout_s=1.0)
        self._is_closing = True
        self._disconnected_since_ms = self._clock.monotonic_ms()
        self._healed.set()
        self._end_requests()
        await self._close_client()
        leftovers = [task for task in (self._watchdog, *self._tasks) if task is not None]
        for task in leftovers:
            task.cancel()
        if leftovers:
            await asyncio.wait(leftovers, timeout=_CLOSE_PATIENCE_S)

    async def _close_client(self) -> None:
        """Close politely; from a peer that takes nothing, just go."""
        closing = asyncio.ensure_future(self._client.close())
        await asyncio.wait((closing,), timeout=_CLOSE_PATIENCE_S)
        if not closing.done():
            abort_transport(self._client)
            await asyncio.wait((closing,), timeout=_CLOSE_PATIENCE_S)
            closing.cancel()

    async def _on_error(self, error: Exception) -> None:
        is_outage = isinstance(error, (OSError, nats_errors.StaleConnectionError))
        level = logging.DEBUG if is_outage else logging.WARNING
        logger.log(level, "NATS client: %r", error)

    async def _on_disconnected(self) -> None:
        if not self._is_closing and self.disconnected_since_ms is not None:
            logger.warning("connection to NATS lost")

    async def _on_reconnected(self) -> None:
        notice_dead_peers(self._client)
        await self._on_healed()

    async def _on_healed(self) -> None:
        """Run the hooks; none of them can keep the others or the client from going on."""
        self._reconnects_seen = self._client.stats["reconnects"]
        self.generation += 1
        self._disconnected_since_ms = None
        healed, self._healed = self._healed, asyncio.Event()
        logger.info("connection to NATS is back")
        self._end_requests()
        for hook in tuple(self._hooks):
            try:
                await hook()
            except Exception:
                logger.exception("a reconnect hook failed")
        healed.set()

    async def _watch(self) -> None:
        """Replace a client that closed by itself, and give up connections that do not answer."""
        while not self._is_closing:
            await asyncio.sleep(self._options.watch_every_ms / 1000)
            try:
                if self._client.is_closed:
                    await self._replace_client()
                elif self._client.is_reconnecting:
                    abort_transport(self._client, only_if_closing=True)
                elif not await self._answers(self._client):
                    await self._give_up_connection()
            except BusError as error:
                logger.warning("%s", error)
            except Exception:
                logger.exception("the connection's watchdog stumbled")

    async def _answers(self, client: Client) -> bool:
        """Tell whether a pong, or anything else, comes in time.

        The ping is cancelled only when its connection is gone, for a PONG to a cancelled ping
        would stop the read loop.
        """
        reconnects = client.stats["reconnects"]
        ping = self.spawn(client.rtt(timeout=3_600))
        heard = -1
        while not ping.done() and heard != client.stats["in_msgs"]:
            heard = client.stats["in_msgs"]
            await asyncio.wait((ping,), timeout=self._options.stall_ms / 1000)
            if not client.is_connected or client.stats["reconnects"] != reconnects:
                ping.cancel()
                return True
        return ping.done() and ping.exception() is None

    async def _give_up_connection(self) -> None:
        logger.warning("NATS does not answer: connecting anew")
        self._disconnected_since_ms = self._clock.monotonic_ms()
        abort_transport(self._client)
        await self._client.force_reconnect()

    async def _replace_client(self) -> None:
        """Start over with a fresh client: nats-py closes for ever on some errors."""
        self._client = Client()
        self._reconnects_seen = 0
        await self._connect(self._options.connect_timeout_ms / 1000)
        for subscription in tuple(self._subscriptions):
            await subscription.attach(self._client)
        await self._on_healed()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def open_connection(url: str, name: str, options: ConnectOptions) -> NatsConnection:
    """Connect to a NATS server of at least version 2.11."""
    connection = NatsConnection(url, name, options)
    await connection.open()
    return connection


def status_of(message: Reply) -> str:
    """Return the status code of a status message, '' of any other (its text is unreliable)."""
    if message.data or not message.headers:
        return ""
    return str(message.headers.get(STATUS_HEADER, ""))
