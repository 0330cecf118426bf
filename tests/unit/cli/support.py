"""A cluster in memory for the commands: what the test puts there, and what a scheduler would do."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

from broker import codec, subjects, topology
from broker.bus import BusMessage
from broker.clock import SystemClock
from broker.ids import run_id
from broker.memory_bus import MemoryBus, MemoryServer
from broker.schemas.command import TaskPlacement
from broker.schemas.fact import JobFact, RunPlaced, fact_kind
from broker.schemas.views import JobState, JobView, NodeView
from cli.main import run

Handler = Callable[[MemoryBus, BusMessage], Awaitable[None]]


class FakeCluster:
    """Commands connect to it instead of a server; ``answers`` are its services."""

    def __init__(self):
        self.server = MemoryServer(SystemClock())
        self.answers: dict[str, Handler] = {}
        self._in_loop(topology.ensure)

    async def open_bus(self, url):
        services = MemoryBus(self.server)
        for subject, answer in self.answers.items():

            async def handle(message, answer=answer):
                await answer(services, message)

            await services.subscribe(subject, handle)
        return MemoryBus(self.server)

    def _in_loop(self, work):
        async def body():
            return await work(MemoryBus(self.server))

        return asyncio.run(body())

    def put_job(self, view):
        self._in_loop(lambda bus: put_job(bus, view))

    def put_node(self, view):
        self._in_loop(lambda bus: bus.kv_put(topology.NODES, view.node, codec.encode(view)))

    def put_fact(self, fact: JobFact):
        self._in_loop(lambda bus: put_fact(bus, fact))

    def put_telemetry(self, telemetry):
        subject = subjects.telemetry(telemetry.node)
        self._in_loop(lambda bus: bus.publish(subject, codec.encode(telemetry)))

    def inputs(self):
        """What the commands have put into the input log: (subject, plain JSON, message id)."""
        stream = self.server.stream(topology.INPUT)
        messages = [record.message for record in stream.records_from(1, ">")]
        return [
            (message.subject, json.loads(message.data), message.message_id) for message in messages
        ]

    def on_request(self, verb, change: Callable[[JobView, dict], JobView | None]):
        """Act as a scheduler: change a job's view when a request about it arrives."""

        async def answer(bus, message):
            request = json.loads(message.data)
            entry = await bus.kv_get(topology.JOBS, str(request["job_id"]))
            changed = change(codec.decode(JobView, entry.data), request)
            if changed is not None:
                await put_job(bus, changed)

        self.answers[f"{_JOB_REQUESTS}.*.{verb}"] = answer

    def answer_api(self, reply):
        async def answer(bus, message):
            await bus.respond(message, codec.encode(reply))

        self.answers[subjects.api("explain")] = answer


_JOB_REQUESTS = subjects.JOBS_ALL.removesuffix(".>")


async def put_job(bus, view):
    await bus.kv_put(topology.JOBS, str(view.job_id), codec.encode(view))


async def put_fact(bus, fact):
    await bus.append(subjects.job_fact(fact.job_id, fact_kind(fact)), codec.encode(fact))


def job(job_id=7, name="digits", state=JobState.RUNNING, **more):
    now_ms = SystemClock().now_ms()
    known = {
        "user": "ada",
        "workers": 1,
        "gpus_per_worker": 1,
        "gpus": 1,
        "submitted_at_ms": now_ms - 60_000,
        "as_of_ms": now_ms,
    }
    return JobView(job_id=job_id, name=name, state=state, **(known | more))


def placed(job_id, attempt, tasks: dict[str, str]):
    """A fact: run ``attempt`` was placed with these tasks on these nodes."""
    return RunPlaced(
        job_id=job_id,
        run_id=run_id(job_id, attempt),
        tasks=tuple(
            TaskPlacement(role=role, index=int(index), rank=rank, node=node)
            for rank, (name, node) in enumerate(tasks.items())
            for role, _, index in [name.partition("-")]
        ),
    )


def node(name="node-0", **more):
    return NodeView(node=name, state="up", host="127.0.0.1", **more)


def call(*arguments):
    """Run a command line as the shell would; return its exit code."""
    with suppress(SystemExit):
        return int(run([str(argument) for argument in arguments]))
