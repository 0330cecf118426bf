"""The streams as data, and what `ensure` does about differences."""

import pytest

from broker import subjects, topology
from broker.errors import BusError, TopologyError


class StubbornAdmin:
    """A server with given streams that may refuse changes."""

    def __init__(self, refusal=None):
        self.streams = {}
        self.kept = []
        self.updated = []
        self.refusal = refusal

    async def stream_config(self, name):
        return self.streams.get(name)

    async def create_stream(self, config):
        if self.refusal:
            raise BusError(self.refusal)
        self.streams[config["name"]] = {**config, "added_by_server": True}

    async def update_stream(self, config):
        if self.refusal:
            raise BusError(self.refusal)
        self.updated.append(config["name"])
        self.streams[config["name"]] = dict(config)

    def keep_stream(self, config):
        self.kept.append(config["name"])


def test_every_subject_of_ours_that_is_stored_belongs_to_exactly_one_stream():
    captured = [pattern for each in topology.definitions() for pattern in each.subjects]
    assert len(captured) == len(set(captured))
    for pattern in (
        subjects.JOBS_ALL,
        subjects.INPUTS_ALL,
        subjects.LOG_ALL,
        subjects.COMMANDS_ALL,
        subjects.FACTS_ALL,
        subjects.DEAD_ALL,
        subjects.TELEMETRY_ALL,
    ):
        assert pattern in captured


def test_both_logs_are_durable_refuse_when_full_and_never_lose_a_message():
    by_name = {each.name: each for each in topology.definitions(replicas=3, max_log_bytes=1_000)}
    for name in (topology.INPUT, topology.DECISIONS):
        log = by_name[name]
        assert (log.storage, log.retention, log.discard) == ("file", "limits", "new")
        assert (log.max_bytes, log.max_age, log.num_replicas) == (1_000, 0, 3)
        assert log.deny_delete
        assert log.duplicate_window == 300_000_000_000
        assert log.max_consumers == 10_000
    assert by_name[topology.TELEMETRY].num_replicas == 1


async def test_missing_streams_are_created_and_those_in_memory_kept():
    admin = StubbornAdmin()
    await topology.ensure(admin)
    assert set(admin.streams) == {each.name for each in topology.definitions()}
    assert admin.kept == [topology.TELEMETRY]
    await topology.ensure(admin)
    assert admin.updated == []


async def test_only_what_differs_is_updated_and_other_settings_stay():
    admin = StubbornAdmin()
    await topology.ensure(admin)
    admin.streams[topology.DEAD]["max_bytes"] = 1
    await topology.ensure(admin)
    assert admin.updated == [topology.DEAD]
    assert admin.streams[topology.DEAD]["max_bytes"] == 256 * topology.MIB
    assert admin.streams[topology.DEAD]["added_by_server"]


async def test_replicas_are_raised_and_never_lowered():
    admin = StubbornAdmin()
    await topology.ensure(admin, replicas=3)
    await topology.ensure(admin, replicas=1)
    assert admin.streams[topology.INPUT]["num_replicas"] == 3
    assert admin.updated == []
    await topology.ensure(admin, replicas=5)
    assert admin.streams[topology.INPUT]["num_replicas"] == 5


@pytest.mark.parametrize(
    ("field", "there", "wanted"),
    [
        ("storage", "memory", "file"),
        ("retention", "interest", "limits"),
        ("max_consumers", 5, 10_000),
    ],
)
async def test_what_cannot_be_updated_is_named_with_both_values(field, there, wanted):
    admin = StubbornAdmin()
    await topology.ensure(admin)
    admin.streams[topology.INPUT][field] = there
    with pytest.raises(TopologyError) as caught:
        await topology.ensure(admin)
    assert str(caught.value) == (
        f"stream {topology.INPUT}: {field} is {there!r}, wanted {wanted!r}"
    )
    assert admin.updated == []


async def test_an_update_that_the_server_refuses_names_the_difference_and_its_words():
    admin = StubbornAdmin()
    await topology.ensure(admin)
    admin.streams[topology.INPUT]["deny_delete"] = False
    admin.refusal = "can not do that"
    with pytest.raises(TopologyError, match=r"deny_delete is False, wanted True.*can not do that"):
        await topology.ensure(admin)


async def test_a_creation_that_the_server_refuses_names_the_stream_and_its_size():
    admin = StubbornAdmin("insufficient storage")
    with pytest.raises(TopologyError, match=r"TIRESIAS_INPUT .max_bytes 4294967296.*insufficient"):
        await topology.ensure(admin)


def test_what_the_server_adds_is_no_difference():
    wanted = topology.definitions()[0].config()
    there = {
        **wanted,
        "subjects": list(reversed(wanted["subjects"])),
        "metadata": {**wanted["metadata"], "_nats.level": "1"},
        "compression": "none",
    }
    del there["allow_rollup_hdrs"]
    assert topology.differences(there, wanted) == {}
