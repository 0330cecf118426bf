"""Times, durations and text as people and programs see them."""

import time

import pytest

from cli import output


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (None, "-"),
        (-5_000, "0ms"),
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1.0s"),
        (59_900, "59.9s"),
        (60_000, "1m00s"),
        (3_599_000, "59m59s"),
        (3_600_000, "1h00m"),
        (90_000_000, "1d01h"),
    ],
)
def test_durations_have_two_units_and_are_never_negative(duration_ms, text):
    assert output.span(duration_ms) == text


@pytest.mark.parametrize(
    ("gpu_ms", "text"),
    [(-1, "0 GPU-s"), (80_000, "80 GPU-s"), (7_199_000, "7199 GPU-s"), (7_200_000, "2.0 GPU-h")],
)
def test_service_is_told_in_gpu_seconds_then_hours(gpu_ms, text):
    assert output.service(gpu_ms) == text


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (1_711_846_799_000, "2024-03-31 01:59:59 +0100"),
        (1_711_846_800_000, "2024-03-31 03:00:00 +0200"),
        (1_730_001_600_000, "2024-10-27 05:00:00 +0100"),
    ],
)
def test_screens_name_the_offset_across_summer_time(monkeypatch, at_ms, text):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert output.local_time(at_ms) == text
    finally:
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()


def test_json_times_are_utc():
    assert output.document(
        {"ended_at_ms": 0, "as_of_ms": 1, "save_ms": 5, "x": [{"at_ms": 2}]}
    ) == {
        "ended_at": "1970-01-01T00:00:00.000Z",
        "as_of": "1970-01-01T00:00:00.001Z",
        "save_ms": 5,
        "x": [{"at": "1970-01-01T00:00:00.002Z"}],
    }


def test_control_characters_are_made_visible():
    assert output.printable("a\x1b[31m\x07b\u202e") == "a\ufffd[31m\ufffdb\ufffd"
    assert output.printable("日本語 🚀") == "日本語 🚀"


def test_one_thing_is_not_plural():
    assert [output.counted(n, "GPU") for n in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
