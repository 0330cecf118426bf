"""How every service runs: one event loop, signals, supervised tasks, one line per log record."""

import asyncio
import ctypes
import datetime as dt
import json
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import uvloop

from broker.errors import TiresiasError

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ECHO_S = 1.0
"""The kernel tells a parent's death once for each of its threads: that is one signal to us."""


class Supervisor:
    """Runs the tasks of a service: the first failure cancels the rest and is raised at the end.

    Leaving the block normally cancels what still runs. Nothing outlives the block.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a named task of the service."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None


class KeyValueFormatter(logging.Formatter):
    """One record a line: ``time=… level=… logger=… message="…"``, then the record's extras."""

    def format(self, record: logging.LogRecord) -> str:
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        pairs = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        pairs |= {key: v for key, v in vars(record).items() if key not in _STANDARD_FIELDS}
        line = " ".join(f"{key}={_quoted(str(value))}" for key, value in pairs.items())
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _quoted(text: str) -> str:
    """Quote where a reader of ``key=value`` pairs would stumble."""
    is_plain = text.isprintable() and text and not set(text) & set(' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def configure_logging(level: str) -> None:
    """Send all log records of this level and above to stderr, as key=value lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def die_with_parent(sig: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to send ``sig`` to this process when the thread that started it ends.

    For the child itself, or as the ``preexec_fn`` of a subprocess.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def run_service(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *, log_level: str = "INFO"
) -> None:
    """Run a service until it returns; its event is set on SIGTERM or SIGINT, a second one cancels.

    A failure is logged and ends the process with exit code 1.
    """
    configure_logging(log_level)
    try:
        uvloop.run(_run_until_stopped(main))
    except asyncio.CancelledError:
        logger.warning("stopped by a second signal before the work was put aside")
        raise SystemExit(1) from None
    except (TiresiasError, OSError) as error:
        logger.error("service failed: %s", error)  # noqa: TRY400 - our errors and the machine's
        raise SystemExit(1) from None
    except Exception:
        logger.exception("service failed")
        raise SystemExit(1) from None


async def _run_until_stopped(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stop = asyncio.Event()
    work = asyncio.ensure_future(main(stop))

    loop = asyncio.get_running_loop()
    first_s = 0.0

    def on_signal() -> None:
        nonlocal first_s
        if not stop.is_set():
            first_s = loop.time()
            stop.set()
        elif loop.time() - first_s > _ECHO_S:
            work.cancel()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        await work
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
