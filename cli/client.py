"""The commands' side of the bus: connect, read views, send requests, wait for what they do.

Every wait is bounded by its caller or by the user's Ctrl-C. Job requests carry a message id, so a
request sent again after a lost answer changes nothing.
"""

import asyncio
import difflib
import getpass
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from broker import codec, subjects
from broker.bus import Bus, Stored
from broker.clock import Clock, SystemClock
from broker.errors import BusError, BusUnavailableError, CodecError, NoRespondersError
from broker.ids import to_token
from broker.schemas.api import ApiError, ExplainRequest, LogChunk, LogRead
from broker.schemas.base import Input
from broker.schemas.fact import JobFact
from broker.schemas.node import RunProgress, Telemetry
from broker.schemas.views import Explanation, JobView, NodeView
from broker.topology import DECISIONS, INPUT, JOBS, NODES, TELEMETRY
from cli import address
from cli.exit_codes import CommandError, ExitCode

T = TypeVar("T")
CONNECT_TIMEOUT_S = 3
VIEW_TIMEOUT_S = 5
MAX_SHOWN_CANDIDATES = 5


async def open_bus(url: str) -> Bus:
    """Connect to a real server; tests put another bus here."""
    from broker.nats_bus import connect  # noqa: PLC0415 - slow to load, some commands do without

    return await connect(url, name="cli")


@asynccontextmanager
async def connected(nats: str | None) -> AsyncIterator["Client"]:
    """Connect to the server that ``--nats`` or the environment names, and close at the end."""
    where = address.find(nats, os.environ)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            bus = await open_bus(where.url)
    except (BusError, TimeoutError, OSError) as error:
        raise CommandError(
            f"cannot reach a server at {where.url} (from {where.source}): start one with "
            "'tiresias up', or name one with --nats or TIRESIAS_NATS",
            ExitCode.UNREACHABLE,
        ) from error
    try:
        yield Client(bus, SystemClock(), current_user())
    finally:
        await bus.close()


def run(nats: str | None, body: Callable[["Client"], Awaitable[T]]) -> T:
    """Run a command's coroutine with a client, and return its result."""

    async def main() -> T:
        async with connected(nats) as client:
            return await body(client)

    return asyncio.run(main())


def current_user() -> str:
    """Return the account's name as a subject token; TIRESIAS_USER wins."""
    given = os.environ.get("TIRESIAS_USER")
    if given:
        return to_token(given)
    try:
        return to_token(getpass.getuser())
    except (KeyError, OSError):
        return to_token(f"uid-{os.getuid()}")


class Client:
    """What commands ask of the cluster."""

    def __init__(self, bus: Bus, clock: Clock, user: str) -> None:
        self.bus = bus
        self.clock = clock
        self.user = user

    async def submit(self, request: bytes, key: str = "") -> Stored:
        """Append a job request; its sequence is the job's number.

        With ``key``, a repetition returns the first job; another job under a used key is a
        conflict. The server forgets keys after some minutes.
        """
        message_id = f"{self.user}/{key}" if key else uuid.uuid4().hex
        stored = await self.bus.append(
            subjects.job_request(self.user, "submit"), request, message_id=message_id
        )
        if stored.duplicate and key and await self._request_at(stored.seq) != request:
            raise CommandError(
                f"key {key!r} was already used for another job, number {stored.seq}",
                ExitCode.WRONG_STATE,
            )
        return stored

    async def request(self, verb: str, message: Input) -> Stored:
        """Append a request about a job: cancel, hold or release."""
        return await self.bus.append(
            subjects.job_request(self.user, verb),
            codec.encode(message),
            message_id=uuid.uuid4().hex,
        )

    async def operate(self, kind: str, message: Input) -> Stored:
        """Append a request of an operator."""
        return await self.bus.append(
            subjects.operator_input(self.user, kind),
            codec.encode(message),
            message_id=uuid.uuid4().hex,
        )

    async def jobs(self) -> list[JobView]:
        """Return all jobs by number."""
        entries = await self.bus.kv_all(JOBS)
        views = [codec.decode(JobView, entry.data) for entry in entries.values() if entry.data]
        return sorted(views, key=lambda view: view.job_id)

    async def nodes(self) -> list[NodeView]:
        """Return all nodes by name."""
        entries = await self.bus.kv_all(NODES)
        views = [codec.decode(NodeView, entry.data) for entry in entries.values() if entry.data]
        return sorted(views, key=lambda view: view.node)

    async def node(self, name: str) -> NodeView:
        """Return one node, or raise with the names there are."""
        views = {view.node: view for view in await self.nodes()}
        if name not in views:
            known = ", ".join(views) or "none has joined"
            raise CommandError(f"no node {name!r}; nodes: {known}", ExitCode.NOT_FOUND)
        return views[name]

    async def job(self, reference: str) -> JobView:
        """Return the job of a number or of a name that means one job."""
        if reference.isascii() and reference.isdigit():
            return await self._job_of_number(int(reference))
        views = await self.jobs()
        named = [view for view in views if view.name == reference]
        active = [view for view in named if not view.state.is_terminal]
        for candidates in (active, named):
            if len(candidates) == 1:
                return candidates[0]
            if candidates:
                raise _ambiguous(reference, candidates)
        near = difflib.get_close_matches(reference, {view.name for view in views}, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CommandError(f"no job {reference!r}{hint}", ExitCode.NOT_FOUND)

    async def _job_of_number(self, job_id: int) -> JobView:
        entry = await self.bus.kv_get(JOBS, str(job_id))
        if entry and entry.data:
            return codec.decode(JobView, entry.data)
        if await self._request_at(job_id) is None:
            raise CommandError(f"no job {job_id}", ExitCode.NOT_FOUND)
        try:
            return await self.wait_until(job_id, lambda _: True, timeout_s=VIEW_TIMEOUT_S)
        except TimeoutError as error:
            raise CommandError(
                f"job {job_id} is stored, but no scheduler has read it in {VIEW_TIMEOUT_S} s: "
                "is one running? ('tiresias doctor')",
                ExitCode.UNREACHABLE,
            ) from error

    async def _request_at(self, seq: int) -> bytes | None:
        """Return the submit request stored as number ``seq``, None if there is none."""
        state = await self.bus.stream_state(INPUT)
        if not state.first_seq <= seq <= state.last_seq:
            return None
        async with aclosing(self.bus.read_until(INPUT, from_seq=seq, last_seq=seq)) as messages:
            async for message in messages:
                is_submit = subjects.tokens_after_prefix(message.subject)[::2] == ["jobs", "submit"]
                return message.data if is_submit else None
        return None

    async def wait_until(
        self, job_id: int, is_right: Callable[[JobView], bool], *, timeout_s: float | None = None
    ) -> JobView:
        """Return the job's view as soon as ``is_right`` holds; raises `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            async with aclosing(self.watch(job_id)) as views:
                async for view in views:
                    if is_right(view):
                        return view
        raise BusUnavailableError(f"the watch of job {job_id} ended")

    async def watch(self, job_id: int) -> AsyncGenerator[JobView, None]:
        """Yield the job's present view, then each change."""
        async with aclosing(self.bus.kv_watch(JOBS, str(job_id))) as entries:
            async for entry in entries:
                if entry is not None and entry.data:
                    yield codec.decode(JobView, entry.data)

    async def progress(self) -> dict[str, RunProgress]:
        """Return the newest progress of each run, as the nodes tell it."""
        newest: dict[str, RunProgress] = {}
        for message in await self.bus.last_messages(TELEMETRY, subjects.TELEMETRY_ALL):
            for run in codec.decode(Telemetry, message.data, message.subject).runs:
                if run.run_id not in newest or run.at_ms >= newest[run.run_id].at_ms:
                    newest[run.run_id] = run
        return newest

    async def story(self, job_id: int) -> list[JobFact]:
        """Return all facts about a job, oldest first."""
        last_seq = (await self.bus.stream_state(DECISIONS)).last_seq
        source = self.bus.read_until(
            DECISIONS, from_seq=1, last_seq=last_seq, subject=subjects.job_facts(job_id)
        )
        facts: list[JobFact] = []
        async with aclosing(source) as messages:
            async for message in messages:
                fact: object = codec.decode_output(message.subject, message.data)
                if isinstance(fact, JobFact):
                    facts.append(fact)
        return facts

    async def explain(self, job_id: int) -> Explanation:
        """Ask the leading scheduler why a job is where it is."""
        request = codec.encode(ExplainRequest(job_id=job_id))
        try:
            answer = await self.bus.request(subjects.api("explain"), request)
        except NoRespondersError as error:
            raise CommandError(
                "no scheduler answers: is one running? ('tiresias doctor')", ExitCode.UNREACHABLE
            ) from error
        try:
            return codec.decode(Explanation, answer)
        except CodecError:
            refusal = codec.decode(ApiError, answer)
        raise CommandError(refusal.message, ExitCode.NOT_FOUND)

    async def read_log(self, node: str, read: LogRead) -> LogChunk:
        """Read a part of a task's log from the launcher of its node."""
        answer = await self.bus.request(
            subjects.control(node, "logs"), codec.encode(read), timeout_ms=read.wait_ms + 5_000
        )
        return codec.decode(LogChunk, answer)

    async def is_scheduler_up(self) -> bool:
        """Tell whether a leading scheduler answers; any answer will do."""
        try:
            await self.bus.request(
                subjects.api("explain"), codec.encode(ExplainRequest(job_id=0)), timeout_ms=2_000
            )
        except BusError:
            return False
        return True


def _ambiguous(reference: str, candidates: list[JobView]) -> CommandError:
    shown = ", ".join(
        f"{view.job_id} ({view.state})" for view in candidates[-MAX_SHOWN_CANDIDATES:]
    )
    return CommandError(
        f"{len(candidates)} jobs are named {reference!r}: {shown}; use a number", ExitCode.USAGE
    )
