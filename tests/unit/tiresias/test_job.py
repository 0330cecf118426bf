"""The plain interface: restore, report, save, and stop with the agreed code."""

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiresias
from tiresias.environment import JobEnvironment
from tiresias.errors import CheckpointError, UsageError
from tiresias.job import Job


@pytest.fixture(autouse=True)
def _own_signal_handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def environment(tmp_path):
    return JobEnvironment(checkpoint_dir=tmp_path / "saves", write_token="local")


def ask_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)


def train(job, *, steps, stop_at=None):
    """A random walk: its end depends on both random generators and the step."""
    saved = job.restore()
    step, place = (saved.step, saved.state["place"]) if saved else (0, np.zeros(2))
    while step < steps:
        place = place + [random.random(), np.random.random()]  # noqa: NPY002, RUF005
        step += 1
        job.step(step, {"place": float(place[0])}, total_steps=steps)
        if step == stop_at:
            ask_to_stop()
        if job.should_save():
            job.save(step, {"place": place}, in_background=True)
        job.stop_if_asked(step, lambda place=place: {"place": place})
    job.close()
    return place


def seed():
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002


def test_a_stopped_loop_ends_as_one_that_was_not(environment):
    seed()
    expected = train(Job(replace(environment, checkpoint_dir=Path("unused"))), steps=20)
    seed()
    with pytest.raises(SystemExit) as stopped:
        train(Job(environment), steps=20, stop_at=8)
    assert stopped.value.code == tiresias.EXIT_STOPPED == 75
    random.seed(99)
    assert np.array_equal(train(Job(environment), steps=20), expected)


def test_periodic_saves_follow_the_step_count(environment):
    job = Job(replace(environment, checkpoint_every_steps=5, checkpoint_keep=9))
    due = []
    for step in range(1, 13):
        job.step(step)
        if job.should_save():
            due.append(step)
            job.save(step, {})
    assert due == [5, 10]


def test_periodic_saves_follow_the_clock(environment):
    now_s = [0.0]
    job = Job(environment, save_every_s=60.0, clock=lambda: now_s[0])
    due = []
    for step in range(1, 200):
        now_s[0] += 1
        job.step(step)
        if job.should_save():
            due.append(step)
            job.save(step, {})
    assert due == [60, 120, 180]


def test_a_failed_background_save_is_told_and_training_goes_on(environment, capsys):
    environment.checkpoint_dir.write_text("a file where the folder should be")
    job = Job(environment)
    job.save(1, {}, in_background=True)
    job.flush()
    job.step(2)
    assert "cannot save step 1" in capsys.readouterr().err


def test_a_state_that_cannot_be_saved_is_an_error_even_in_the_background(environment):
    job = Job(environment)
    job.save(1, {"f": object()}, in_background=True)
    with pytest.raises(UsageError, match="cannot be saved"):
        job.flush()


def test_a_stop_whose_save_fails_ends_as_the_signal_would(environment, monkeypatch, capsys):
    class Died(BaseException):
        pass

    def die(_pid, number):
        raise Died(number, signal.getsignal(signal.SIGTERM))

    environment.checkpoint_dir.write_text("a file where the folder should be")
    job = Job(environment)
    ask_to_stop()
    job.step(1)
    monkeypatch.setattr(os, "kill", die)
    with pytest.raises(Died) as died:
        job.stop_if_asked(1, {})
    assert died.value.args == (signal.SIGTERM, signal.SIG_DFL)
    assert "stopping without a new save: cannot save step 1" in capsys.readouterr().err


def test_saving_over_earlier_training_without_restoring_it_is_refused(environment):
    Job(environment).save(1, {})
    with pytest.raises(UsageError, match=r"call restore\(\) before the first save"):
        Job(environment).save(1, {})


def test_restoring_twice_is_refused(environment):
    job = Job(environment)
    job.restore()
    with pytest.raises(UsageError, match="twice"):
        job.restore()


def test_a_gang_whose_ranks_restored_different_steps_is_refused(environment):
    Job(environment).save(3, {})
    job = Job(environment)
    job.restore()
    with pytest.raises(CheckpointError, match="restored step 3, rank 0 step 8"):
        job.agree_with(lambda _values: (8, 0, 0, 0))


def test_a_gang_stops_when_the_sum_says_so(environment):
    job = Job(environment)
    job.agree_with(lambda values: (0, 0, 0, 1) if len(values) == 4 else ())
    ask_to_stop()
    job.step(1)
    assert not job.should_stop()
    job.agree_with(lambda _values: (1, 0, 0, 1) if job.has_agreement else (0, 0, 0, 0))
    job.step(2)
    assert job.should_stop()


def test_init_gives_one_job_per_process(tmp_path, monkeypatch):
    monkeypatch.setattr("tiresias.job._current_job", None)
    monkeypatch.setattr(os, "environ", {})
    with tiresias.init(checkpoint_dir=tmp_path) as job:
        assert tiresias.init() is job
        assert job.environment.checkpoint_dir == tmp_path


def test_the_import_loads_the_standard_library_only():
    script = (
        "import sys, json; before = set(sys.modules); import tiresias; "
        "print(json.dumps(sorted({n.partition('.')[0] for n in set(sys.modules) - before})))"
    )
    root = Path(__file__).parents[3]
    output = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert set(json.loads(output)) - set(sys.stdlib_module_names) == {"tiresias"}
