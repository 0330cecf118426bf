"""A cluster on this machine: nats-server, scheduler, and an agent and a launcher a node.

It is stopped from the top: first the scheduler, so that nothing new is started, then the
launchers, which let their tasks save, then the agents, then the server that took their reports.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from broker import nats_bus, subjects, topology
from broker.clock import SystemClock
from broker.embedded import EmbeddedServer
from broker.errors import BusError
from broker.runtime import Supervisor
from broker.topology import INPUT
from cli import client
from cli.client import Client
from cli.exit_codes import CommandError
from cli.plan import ClusterPlan
from cli.processes import (
    FIRST_BACKOFF_S,
    ManagedProcess,
    adopt_orphans,
    end_text,
    kill_descendants,
    reap_orphans,
)
from cli.waiting import poll

DEFAULT_PORT = 4222
READY_TIMEOUT_S = 60
SERVICE_GRACE_S = 10.0
LAUNCHER_GRACE_S = 75.0
"""The default grace of a job, and time to report."""
_LONGEST_RUN_DIR = 107 - len("/job.sock")
"""Paths of unix sockets have at most 107 bytes."""


class Cluster:
    """The running services; `running` makes one."""

    def __init__(
        self,
        plan: ClusterPlan,
        server: EmbeddedServer | None,
        tell: Callable[[str], None],
        hurry: asyncio.Event,
    ) -> None:
        self.url = plan.nats_url or (server.url if server else "")
        self._plan = plan
        self._server = server
        self._tell = tell
        self._hurry = hurry
        self._after_seq = 0
        self._environment = {**os.environ, "TIRESIAS_NATS": self.url}
        self._scheduler = self._service(
            "scheduler", "scheduler_svc", plan.state_dir / "scheduler", *plan.scheduler_options
        )
        self._agents = [self._agent(node) for node in plan.node_names]
        self._launchers = [self._launcher(node) for node in plan.node_names]

    @property
    def services(self) -> list[ManagedProcess]:
        return [self._scheduler, *self._agents, *self._launchers]

    async def start(self, peer: Client, supervisor: Supervisor) -> None:
        """Start all services; ``supervisor`` keeps them running."""
        self._after_seq = (await peer.bus.stream_state(INPUT)).last_seq
        supervisor.start("orphans", reap_orphans(self._own_pids))
        for service in self.services:
            supervisor.start(service.name, service.run())

    async def stop(self) -> None:
        """Stop the services in order, then whatever is left below them."""
        await self._stop([self._scheduler], SERVICE_GRACE_S)
        await self._stop(self._launchers, LAUNCHER_GRACE_S)
        await self._stop(self._agents, SERVICE_GRACE_S)
        await kill_descendants(self._server_pids())

    def _own_pids(self) -> set[int]:
        return {service.pid or 0 for service in self.services} | self._server_pids()

    def _server_pids(self) -> set[int]:
        return {self._server.pid} if self._server else set()

    async def _stop(self, services: list[ManagedProcess], grace_s: float) -> None:
        await asyncio.gather(*(service.stop(grace_s, self._hurry) for service in services))

    async def wait_ready(self, peer: Client) -> None:
        """Return when every node has joined anew and the scheduler says that it is up."""
        if not await poll(lambda: self._is_ready(peer), READY_TIMEOUT_S):
            logs = self._plan.state_dir / "logs"
            raise CommandError(f"the services were not ready in {READY_TIMEOUT_S} s: see {logs}")

    async def _is_ready(self, peer: Client) -> bool:
        try:
            for node in self._plan.node_names:
                subject = subjects.node_input(node, "joined")
                joined = await peer.bus.last_message(INPUT, subject)
                if joined is None or joined.seq <= self._after_seq:
                    return False
            states = {view.node: view.state for view in await peer.nodes()}
        except BusError:
            return False
        are_up = all(states.get(node) == "up" for node in self._plan.node_names)
        return are_up and await peer.is_scheduler_up()

    def _service(self, name: str, module: str, state_dir: Path, *arguments: str) -> ManagedProcess:
        return ManagedProcess(
            name,
            module,
            ("--state-dir", str(state_dir), *arguments),
            environment=self._environment,
            log_path=self._plan.state_dir / "logs" / f"{name}.log",
            tell=self._tell,
        )

    def _agent(self, node: str) -> ManagedProcess:
        gpus = () if self._plan.gpus is None else ("--gpus", str(self._plan.gpus))
        return self._service(
            f"agent-{node}",
            "node_agent",
            self._plan.state_dir / "nodes" / node / "agent",
            *("--node", node, "--run-dir", str(run_dir(self._plan.state_dir, node)), *gpus),
        )

    def _launcher(self, node: str) -> ManagedProcess:
        return self._service(
            f"launcher-{node}",
            "launcher",
            self._plan.state_dir / "nodes" / node / "launcher",
            *("--node", node, "--run-dir", str(run_dir(self._plan.state_dir, node))),
            *("--checkpoint-root", str(self._plan.state_dir / "checkpoints")),
            *("--on-exit", "stop"),
        )


@asynccontextmanager
async def running(
    plan: ClusterPlan, tell: Callable[[str], None], hurry: asyncio.Event
) -> AsyncIterator[tuple[Cluster, Client]]:
    """Start a cluster and stop it at the end; ``hurry`` set meanwhile makes that a kill."""
    adopt_orphans()
    plan.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = None if plan.nats_url else _server(plan)
    async with server or nullcontext(), Supervisor() as supervisor:
        if server:
            supervisor.start("nats", _keep_server(server, tell))
        url = plan.nats_url or (server.url if server else "")
        bus = await nats_bus.connect(url, name="up")
        try:
            await topology.ensure(bus)
            peer = Client(bus, SystemClock(), client.current_user())
            cluster = Cluster(plan, server, tell, hurry)
            await cluster.start(peer, supervisor)
            try:
                yield cluster, peer
            finally:
                await cluster.stop()
        finally:
            await bus.close()


def _server(plan: ClusterPlan) -> EmbeddedServer:
    port = plan.port
    if port is None:
        port = DEFAULT_PORT if _is_free(DEFAULT_PORT) else -1
    elif not _is_free(port):
        raise CommandError(f"port {port} of 127.0.0.1 is in use: choose another with --port")
    return EmbeddedServer(plan.state_dir / "nats", port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def _keep_server(server: EmbeddedServer, tell: Callable[[str], None]) -> None:
    """Start the server again when it dies; its clients connect again by themselves."""
    while True:
        code = await server.wait()
        tell(f"nats-server ended with {end_text(code)}; starting it again")
        await asyncio.sleep(FIRST_BACKOFF_S)
        await server.restart()


def run_dir(state_dir: Path, node: str) -> Path:
    """Return the folder for a node's sockets, short enough for them."""
    usual = state_dir / "run" / node
    if len(str(usual)) <= _LONGEST_RUN_DIR:
        return usual
    raise CommandError(
        f"state folder {state_dir} is too long for sockets below it: "
        f"use one of at most {_LONGEST_RUN_DIR - len(f'/run/{node}')} characters"
    )
