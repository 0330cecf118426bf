"""Requests reach the supervisor in whose run's folder its pipe is, and name their run."""

import os
import shutil

import pytest

from launcher.control import ControlPipe, StopRequest, ask

FIRST = StopRequest("1-1", "Cancel", 40)
SECOND = StopRequest("2-1", "Preempt", 0)


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / name for name in ("1-1", "2-1")]
    for folder in made:
        folder.mkdir()
    return made


@pytest.fixture
def pipe():
    made = ControlPipe()
    yield made
    os.close(made.file)


def test_a_pipe_moves_to_the_next_run_and_leaves_none_behind(folders, pipe):
    pipe.move_to(folders[0])
    ask(folders[0], FIRST)
    ask(folders[0], FIRST)
    assert pipe.requests() == [FIRST, FIRST]
    pipe.move_to(folders[1])
    ask(folders[0], FIRST)
    ask(folders[1], SECOND)
    assert pipe.requests() == [SECOND]
    assert pipe.requests() == []
    assert list(folders[0].iterdir()) == []


def test_a_pipe_removed_with_its_folder_is_made_anew(folders, pipe):
    pipe.move_to(folders[0])
    shutil.rmtree(folders[0])
    pipe.move_to(folders[1])
    ask(folders[1], SECOND)
    assert pipe.requests() == [SECOND]


def test_what_is_no_request_is_left_out(folders, pipe):
    pipe.move_to(folders[0])
    late = '{"run_id": "1-1", "reason": "Cancel", "grace_ms": "soon"}'
    with (folders[0] / "control").open("w") as writer:
        writer.write(f"{{}}\n[1, 2]\n{late}\n\nnonsense\n7\n")
    ask(folders[0], FIRST)
    assert pipe.requests() == [FIRST]
