"""What happens when servers, connections and folders go wrong."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from broker import nats_pull, subjects, topology
from broker.embedded import EmbeddedServer, check_version, find_binary
from broker.errors import BusError, BusUnavailableError, EmbeddedServerError
from broker.nats_bus import connect
from broker.nats_transport import ConnectOptions
from tests.contract.proxy import Proxy

SUBMIT = subjects.job_request("ada", "submit")
STOP = subjects.command("n1", "stop_run")
PATIENCE_S = 20
IMPATIENT = ConnectOptions(watch_every_ms=50, stall_ms=300)

pytestmark = pytest.mark.nats


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - other processes set no event here
            await asyncio.sleep(0.01)


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()


async def kill_and_restart(server):
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await server.restart()


async def test_reading_across_a_killed_server_has_no_gap(nats_server, nats_bus):
    seen = []

    async def read():
        async with aclosing(nats_bus.read(topology.INPUT, from_seq=1)) as messages:
            async for message in messages:
                seen.append((message.seq, int(message.data)))  # noqa: PERF401 - watched live

    reader = asyncio.create_task(read())
    appends = []
    for round_number in range(2):
        numbers = range(round_number * 100, round_number * 100 + 100)
        appends += [
            asyncio.create_task(nats_bus.append(SUBMIT, str(n).encode(), timeout_ms=20_000))
            for n in numbers
        ]
        await until(lambda first=numbers.start: len(seen) > first)
        await kill_and_restart(nats_server)
    stored = await asyncio.gather(*appends)
    await until(lambda: len(seen) == 200)
    assert [each.seq for each in stored] == list(range(1, 201))
    assert seen == [(n + 1, n) for n in range(200)]
    reader.cancel()
    await asyncio.wait([reader])


async def test_consuming_across_a_killed_server_loses_nothing(nats_server, nats_bus):
    seen = []

    async def consume():
        source = nats_bus.consume(
            topology.DECISIONS, durable="launcher_n1", subject=subjects.commands_of("n1")
        )
        async with aclosing(source) as deliveries:
            async for delivery in deliveries:
                seen.append(int(delivery.message.data))
                await delivery.ack()

    consumer = asyncio.create_task(consume())
    appends = [
        asyncio.create_task(nats_bus.append(STOP, str(n).encode(), timeout_ms=20_000))
        for n in range(100)
    ]
    await until(lambda: len(seen) > 10)
    await kill_and_restart(nats_server)
    await asyncio.gather(*appends)
    await until(lambda: set(seen) == set(range(100)))
    assert sorted(set(seen)) == list(range(100))
    consumer.cancel()
    await asyncio.wait([consumer])


async def test_an_append_during_an_outage_is_stored_once(nats_server, nats_bus):
    os.kill(nats_server.pid, signal.SIGKILL)
    await nats_server.wait()
    appends = [
        asyncio.create_task(nats_bus.append(SUBMIT, str(n).encode(), message_id=f"key-{n}"))
        for n in range(20)
    ]
    await until(lambda: not nats_bus.is_connected)
    assert nats_bus.disconnected_since_ms is not None
    await nats_server.restart()
    assert [stored.seq for stored in await asyncio.gather(*appends)] == list(range(1, 21))
    assert (await nats_bus.stream_state(topology.INPUT)).last_seq == 20
    assert nats_bus.disconnected_since_ms is None


async def test_an_append_whose_answer_was_lost_is_stored_once(nats_server, nats_bus):
    os.kill(nats_server.pid, signal.SIGSTOP)
    claim = asyncio.create_task(nats_bus.claim_leadership(b"", message_id="term"))
    append = asyncio.create_task(nats_bus.append(SUBMIT, b"", message_id="key"))
    await asyncio.sleep(0.05)
    os.kill(nats_server.pid, signal.SIGCONT)
    os.kill(nats_server.pid, signal.SIGKILL)
    await nats_server.wait()
    await nats_server.restart()
    assert (await append).seq == 1
    assert await claim == 1
    assert (await nats_bus.stream_state(topology.DECISIONS)).last_seq == 1


async def test_answers_lost_on_the_way_do_not_make_anything_happen_twice(nats_server, nats_bus):
    async with Proxy(nats_server.url) as proxy:
        bus = await connect(proxy.url, name="behind")
        proxy.is_mute = True
        calls = [
            asyncio.create_task(call)
            for call in (
                bus.append(SUBMIT, b"", message_id="key"),
                bus.claim_leadership(b"", message_id="term"),
                bus.kv_compare_and_set(topology.LEASE, "leader", b"", 0),
            )
        ]
        async with asyncio.timeout(PATIENCE_S):
            while not await nats_bus.kv_get(topology.LEASE, "leader"):
                await nats_bus.barrier()
        proxy.is_mute = False
        proxy.cut()
        stored, claimed, revision = await asyncio.gather(*calls)
        await bus.close()
    assert (stored.seq, claimed, revision) == (1, 1, 1)
    for stream in (topology.INPUT, topology.DECISIONS, topology.kv_stream(topology.LEASE)):
        assert (await nats_bus.stream_state(stream)).last_seq == 1


async def test_an_append_that_nothing_captures_fails_in_time(nats_bus):
    with pytest.raises(BusUnavailableError, match="no stream captures the subject"):
        await nats_bus.append("nowhere", b"", timeout_ms=100)


async def test_reading_survives_the_loss_of_its_consumer(nats_bus):
    await nats_bus.append(SUBMIT, b"a")
    source = nats_bus.read(topology.INPUT, from_seq=1)
    async with asyncio.timeout(PATIENCE_S), aclosing(source) as messages:
        assert (await anext(messages)).seq == 1
        answer = await nats_bus._api.call(f"CONSUMER.NAMES.{topology.INPUT}", {})
        for name in json.loads(answer)["consumers"]:
            await nats_bus._api.call(f"CONSUMER.DELETE.{topology.INPUT}.{name}")
        await nats_bus.append(SUBMIT, b"b")
        assert (await anext(messages)).seq == 2


async def test_an_idle_reader_goes_on_after_its_requests_expired(nats_bus, monkeypatch):
    monkeypatch.setattr(nats_pull, "_EXPIRES_S", 0.2)
    monkeypatch.setattr(nats_pull, "_HEARTBEAT_S", 0.1)
    source = nats_bus.read(topology.INPUT, from_seq=1)
    async with asyncio.timeout(PATIENCE_S), aclosing(source) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0.7)
        await nats_bus.append(SUBMIT, b"late")
        assert (await waiting).data == b"late"
        answer = await nats_bus._api.call(f"CONSUMER.LIST.{topology.INPUT}", {})
        (consumer,) = json.loads(answer)["consumers"]
    assert consumer["num_waiting"] <= 2


async def test_a_damaged_object_is_an_error(nats_bus):
    await nats_bus.object_put(topology.SNAPSHOTS, "newest", b"x" * 300_000)
    chunks = {"filter": f"$O.{topology.SNAPSHOTS}.C.>", "keep": 1}
    await nats_bus._api.call(f"STREAM.PURGE.OBJ_{topology.SNAPSHOTS}", chunks)
    with pytest.raises(BusError, match=r"'newest' .* is damaged"):
        await nats_bus.object_get(topology.SNAPSHOTS, "newest")


async def test_without_a_server_calls_fail_in_time_and_core_messages_are_dropped(
    nats_server, nats_bus
):
    heard = []

    async def handler(message):
        heard.append(message.data)

    await nats_bus.subscribe("news", handler)
    os.kill(nats_server.pid, signal.SIGKILL)
    await nats_server.wait()
    await until(lambda: not nats_bus.is_connected)
    await nats_bus.publish("news", b"stale")
    with pytest.raises(BusUnavailableError):
        await nats_bus.append(SUBMIT, b"", timeout_ms=50)
    with pytest.raises(BusUnavailableError):
        await nats_bus.request("anybody", b"", timeout_ms=50)
    await nats_server.restart()
    await until(lambda: nats_bus.is_connected)
    await nats_bus.publish("news", b"fresh")
    await until(lambda: heard)
    assert heard == [b"fresh"]


async def test_a_watch_survives_a_killed_server(nats_server, nats_bus):
    await nats_bus.kv_put(topology.JOBS, "1", b"a")
    async with asyncio.timeout(PATIENCE_S), aclosing(nats_bus.kv_watch(topology.JOBS)) as watch:
        assert (await anext(watch)).data == b"a"
        assert await anext(watch) is None
        await kill_and_restart(nats_server)
        await nats_bus.kv_put(topology.JOBS, "1", b"b")
        await nats_bus.kv_delete(topology.JOBS, "1")
        changes = [await anext(watch)]
        while changes[-1].data is not None:
            changes.append(await anext(watch))
    assert [entry.data for entry in changes] in ([b"b", None], [None])


async def test_the_stream_in_memory_is_there_again_after_a_restart(nats_server, nats_bus):
    await kill_and_restart(nats_server)
    await nats_bus.barrier()
    async with asyncio.timeout(PATIENCE_S):
        while await nats_bus.stream_config(topology.TELEMETRY) is None:
            await nats_bus.barrier()


async def test_a_reader_refuses_a_log_that_lost_what_it_has_read(tmp_path, nats_server, nats_bus):
    await nats_bus.append(SUBMIT, b"")
    source = nats_bus.read(topology.INPUT, from_seq=1)
    async with asyncio.timeout(PATIENCE_S), aclosing(source) as messages:
        await anext(messages)
        port = int(nats_server.url.rpartition(":")[2])
        await nats_server.stop()
        async with EmbeddedServer(tmp_path / "empty", port):
            await topology.ensure(nats_bus)
            with pytest.raises(BusError, match="ends at 0, but was already read to 1"):
                await anext(messages)


async def test_a_stalled_server_is_noticed_and_left(nats_server):
    bus = await connect(nats_server.url, name="test", options=IMPATIENT)
    try:
        await topology.ensure(bus)
        os.kill(nats_server.pid, signal.SIGSTOP)
        more_than_sockets_buffer = b"x" * 100_000
        appends = [
            asyncio.create_task(bus.append(SUBMIT, more_than_sockets_buffer)) for _ in range(100)
        ]
        await until(lambda: not bus.is_connected)
        os.kill(nats_server.pid, signal.SIGCONT)
        await until(lambda: bus.is_connected)
        assert [stored.seq for stored in await asyncio.gather(*appends)] == list(range(1, 101))
        assert (await bus.stream_state(topology.INPUT)).last_seq == 100
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(nats_server.pid, signal.SIGCONT)
        await bus.close()


async def test_a_client_that_closed_by_itself_is_replaced(nats_server):
    bus = await connect(nats_server.url, name="test", options=IMPATIENT)
    await topology.ensure(bus)

    async def handler(message):
        await bus.respond(message, b"here")

    await bus.subscribe("api", handler)
    await bus._connection._client.close()
    assert not bus.is_connected
    assert (await bus.append(SUBMIT, b"", message_id="key")).seq == 1
    assert await bus.request("api", b"") == b"here"
    assert bus.is_connected
    await bus.close()


async def test_what_waits_when_the_bus_closes_is_told(nats_server, nats_bus):
    os.kill(nats_server.pid, signal.SIGSTOP)
    append = asyncio.create_task(nats_bus.append(SUBMIT, b""))
    reader = asyncio.create_task(anext(nats_bus.read(topology.INPUT, from_seq=1)))
    await asyncio.sleep(0)
    await nats_bus.close()
    with pytest.raises(BusUnavailableError, match="closed before"):
        await append
    with pytest.raises(BusError):
        await reader
    with pytest.raises(BusError, match="is closed"):
        await nats_bus.append(SUBMIT, b"")
    os.kill(nats_server.pid, signal.SIGCONT)


async def test_a_cancelled_barrier_does_not_break_the_connection(nats_server, nats_bus):
    os.kill(nats_server.pid, signal.SIGSTOP)
    barrier = asyncio.create_task(nats_bus.barrier())
    await asyncio.sleep(0.05)
    barrier.cancel()
    await asyncio.wait([barrier])
    os.kill(nats_server.pid, signal.SIGCONT)
    assert (await nats_bus.append(SUBMIT, b"", timeout_ms=5_000)).seq == 1


async def test_connecting_to_nobody_fails_in_time():
    options = ConnectOptions(connect_timeout_ms=200)
    with pytest.raises(BusUnavailableError, match="no NATS server answers"):
        await connect("nats://127.0.0.1:1", name="test", options=options)


async def test_a_message_above_the_servers_limit_is_refused_at_once(nats_bus):
    with pytest.raises(BusError, match="the server takes 1048576"):
        await nats_bus.append(SUBMIT, b"x" * 1_100_000)


async def test_a_log_larger_than_the_server_allows_is_refused(tmp_path):
    async with EmbeddedServer(tmp_path / "nats", max_file_bytes=topology.MIB) as server:
        bus = await connect(server.url, name="test")
        with pytest.raises(BusError, match=r"TIRESIAS_INPUT.*max_bytes 4294967296"):
            await topology.ensure(bus)
        await bus.close()


async def test_a_folder_serves_one_server_only(nats_server, tmp_path):
    with pytest.raises(EmbeddedServerError, match=f"in use by process {os.getpid()}"):
        await EmbeddedServer(tmp_path / "nats").start()


async def test_a_taken_port_is_named(nats_server, tmp_path):
    port = int(nats_server.url.rpartition(":")[2])
    with pytest.raises(EmbeddedServerError, match=f"port {port}.*in use"):
        await EmbeddedServer(tmp_path / "other", port).start()


async def test_a_stopped_folder_is_private_and_keeps_its_messages(tmp_path):
    folder = tmp_path / "nats"
    for seq in (1, 2):
        async with EmbeddedServer(folder) as server:
            bus = await connect(server.url, name="test")
            await topology.ensure(bus)
            assert (await bus.append(SUBMIT, b"")).seq == seq
            await bus.close()
            pid = server.pid
        assert not is_alive(pid)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_a_killed_parent_leaves_no_server_behind(tmp_path):
    script = (
        "import asyncio, sys\n"
        "from broker.embedded import EmbeddedServer\n"
        "async def main():\n"
        "    async with EmbeddedServer(sys.argv[1]) as server:\n"
        "        print(server.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, tmp_path / "nats", stdout=asyncio.subprocess.PIPE
    )
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.communicate()
    await until(lambda: not is_alive(pid))
    async with EmbeddedServer(tmp_path / "nats"):
        pass


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("nats-server: v2.10.26", "v2.10.26: at least v2.11 is needed"),
        ("hello", "does not print a version: 'hello'"),
    ],
)
async def test_a_binary_that_will_not_do_is_refused(tmp_path, output, problem):
    binary = tmp_path / "nats-server"
    binary.write_text(f"#!/bin/sh\necho '{output}'\n")
    binary.chmod(0o755)
    with pytest.raises(EmbeddedServerError, match=problem):
        await EmbeddedServer(tmp_path / "nats", binary=binary).start()


async def test_a_binary_that_is_no_program_is_refused(tmp_path):
    binary = tmp_path / "nats-server"
    binary.write_text("no program")
    binary.chmod(0o755)
    with pytest.raises(EmbeddedServerError, match="cannot run"):
        await check_version(binary)


def test_the_binary_named_by_the_environment_comes_first(tmp_path, monkeypatch):
    missing = tmp_path / "missing"
    monkeypatch.setenv("TIRESIAS_NATS_SERVER", str(missing))
    with pytest.raises(EmbeddedServerError, match=r"no nats-server at .*missing"):
        find_binary()
    monkeypatch.delenv("TIRESIAS_NATS_SERVER")
    assert find_binary().name == "nats-server"


def test_a_server_that_was_never_started_has_no_process(tmp_path):
    with pytest.raises(EmbeddedServerError, match="is not started"):
        EmbeddedServer(tmp_path / "nats").pid  # noqa: B018
