"""Rules about single tasks: exits, TF_CONFIG, GPUs, offsets of logs."""

import json

import pytest

from launcher.core.gpu_ledger import GpuLedger
from launcher.core.log_index import Segment, Span, end_of, locate, segment_name, segment_start
from launcher.core.outcome import ends_run, peer_grace_ms, seen_through_shell
from launcher.core.tf_config import tf_config


@pytest.mark.parametrize(
    ("role", "code", "decides"),
    [
        ("worker", 0, False),
        ("worker", 1, True),
        ("worker", -9, True),
        ("worker", 75, True),
        ("ps", 0, False),
        ("ps", -11, True),
        ("chief", 0, True),
        ("chief", 2, True),
    ],
)
def test_a_failure_or_the_chief_ends_the_run(role, code, decides):
    assert ends_run(role, code) is decides


def test_others_get_little_time_unless_they_may_be_saving_too():
    assert peer_grace_ms(1, 60_000) == 10_000
    assert peer_grace_ms(0, 4_000) == 4_000
    assert peer_grace_ms(75, 60_000) == 60_000


@pytest.mark.parametrize(
    ("code", "was_asked", "seen"),
    [(143, True, -15), (137, True, -9), (143, False, 143), (139, True, 139), (75, True, 75)],
)
def test_a_shell_tells_what_its_command_died_of_only_after_a_request(code, was_asked, seen):
    assert seen_through_shell(code, was_asked=was_asked) == seen


def test_tf_config_names_the_cluster_without_empty_roles_and_the_task():
    cluster = {"worker": ("a:1", "b:2"), "chief": ("a:3",), "ps": ()}
    assert json.loads(tf_config(cluster, "worker", 1)) == {
        "cluster": {"worker": ["a:1", "b:2"], "chief": ["a:3"]},
        "task": {"type": "worker", "index": 1},
    }


def test_a_gpu_has_one_owner_until_it_is_released():
    ledger = GpuLedger()
    ledger.claim("1-1", ["a", "b"])
    assert ledger.conflicts("2-1", ["b", "c"]) == {"b": "1-1"}
    assert ledger.conflicts("1-1", ["a", "b"]) == {}
    ledger.release("1-1")
    assert ledger.conflicts("2-1", ["b", "c"]) == {}


SEGMENTS = [Segment("t.log.30", 30, 5), Segment("t.log.10", 10, 20)]


@pytest.mark.parametrize(
    ("offset", "span"),
    [
        (0, Span("t.log.10", 0, 10)),
        (29, Span("t.log.10", 19, 29)),
        (30, Span("t.log.30", 0, 30)),
        (34, Span("t.log.30", 4, 34)),
        (35, None),
    ],
)
def test_an_offset_is_found_in_its_segment_or_the_next_that_is_left(offset, span):
    assert locate(SEGMENTS, offset) == span


def test_the_end_is_after_the_last_byte():
    assert end_of(SEGMENTS) == 35
    assert end_of([]) == 0


@pytest.mark.parametrize("start", [0, 7, 10_000])
def test_a_segments_name_tells_where_it_starts(start):
    assert segment_start("worker-1", segment_name("worker-1", start)) == start


@pytest.mark.parametrize("name", ["worker-1.log", "worker-10.log.5", "worker-1.log.x", "other"])
def test_files_of_other_tasks_are_no_segments(name):
    assert segment_start("worker-10" if "10" not in name else "worker-1", name) is None
