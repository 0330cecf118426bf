"""A save is complete or invisible, whatever interrupts it."""

import errno
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from tiresias.checkpoint import CheckpointStore
from tiresias.errors import CheckpointError, CheckpointMismatchError


class PowerCut(BaseException):
    """Ends the process, as far as the code under test can tell."""


def store(folder, token="7-1", **options):
    return CheckpointStore(folder, write_token=token, sleep=lambda _seconds: None, **options)


def state(step):
    return {"weights": np.full(1000, float(step)), "step": step}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_restored_from_an_empty_or_missing_folder(tmp_path):
    assert store(tmp_path).newest() is None
    assert store(tmp_path / "missing").newest() is None


def test_the_newest_save_is_restored(tmp_path):
    writer = store(tmp_path)
    for step in (9, 10):
        writer.save(step, state(step))
    checkpoint = store(tmp_path, "7-2").newest()
    assert checkpoint.step == 10
    assert np.array_equal(checkpoint.state["weights"], state(10)["weights"])


def test_only_the_newest_saves_are_kept(tmp_path):
    writer = store(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        writer.save(step, state(step))
    assert names(tmp_path) == ["step-3", "step-4"]


@pytest.mark.parametrize("name", ["data-0.bin", "manifest-0.json"])
@pytest.mark.parametrize("harm", ["truncated", "flipped", "missing"])
def test_a_harmed_newest_save_is_skipped(tmp_path, name, harm, capsys):
    writer = store(tmp_path)
    for step in (1, 2):
        writer.save(step, state(step))
    path = tmp_path / "step-2" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:100] if harm == "truncated" else content)
    assert store(tmp_path, "7-2").newest().step == 1
    assert "ignoring the save of step 2" in capsys.readouterr().err


def test_a_harmed_save_of_the_same_step_is_replaced_and_later_ones_go(tmp_path):
    writer = store(tmp_path, keep=3)
    for step in (1, 2, 3):
        writer.save(step, state(step))
    for step in (2, 3):
        (tmp_path / f"step-{step}" / "data-0.bin").write_bytes(b"")
    second = store(tmp_path, "7-2", keep=3)
    assert second.newest().step == 1
    second.save(2, state(2))
    assert names(tmp_path) == ["step-1", "step-2"]
    assert store(tmp_path, "7-3").newest().step == 2


def test_a_committed_save_is_not_written_again(tmp_path):
    store(tmp_path).save(5, state(5))
    before = (tmp_path / "step-5" / "data-0.bin").stat()
    second = store(tmp_path, "7-2")
    second.newest()
    second.save(5, state(6))
    after = (tmp_path / "step-5" / "data-0.bin").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_no_two_saves_are_ever_written_under_one_temporary_name(tmp_path):
    for token in ("7-1", "7-2"):
        unanswered = store(tmp_path, token, rank=1, ranks=2, gang_timeout_s=0.1)
        for _ in range(2):
            with pytest.raises(CheckpointError):
                unanswered.save(5, state(5))
    assert len(names(tmp_path)) == 4


def count_of_effects(monkeypatch, folder, cut_before):
    """Save once; cut the power before the given file system effect; return how many there were."""
    effects = 0

    def watched(function):
        def call(*arguments, **options):
            nonlocal effects
            effects += 1
            if effects == cut_before:
                raise PowerCut
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for owner, name in [(os, "fsync"), (Path, "rename"), (Path, "mkdir"), (Path, "open")]:
            patch.setattr(owner, name, watched(getattr(owner, name)))
        patch.setattr("tiresias.checkpoint.shutil.rmtree", watched(lambda *_, **__: None))
        writer = store(folder, "7-2", keep=1)
        try:
            writer.save(2, state(2))
        except PowerCut:
            return None
    return effects


def test_a_crash_between_any_two_steps_leaves_a_whole_save(tmp_path, monkeypatch):
    store(tmp_path / "whole").save(1, state(1))
    total = count_of_effects(monkeypatch, tmp_path / "whole", cut_before=0)
    assert total > 8
    found = set()
    for cut_before in range(1, total + 1):
        folder = tmp_path / str(cut_before)
        store(folder).save(1, state(1))
        assert count_of_effects(monkeypatch, folder, cut_before) is None
        checkpoint = store(folder, "7-3").newest()
        assert np.array_equal(checkpoint.state["weights"], state(checkpoint.step)["weights"])
        assert not [name for name in names(folder) if name.startswith(".")]
        found.add(checkpoint.step)
    assert found == {1, 2}


def test_a_full_disk_leaves_the_older_save_and_a_clear_error(tmp_path, monkeypatch):
    writer = store(tmp_path)
    writer.save(1, state(1))

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"step 2 .*No space left.* step 1 is whole"):
            writer.save(2, state(2))
    assert names(tmp_path) == ["step-1"]
    assert writer.save(3, state(3)).step == 3


def test_a_really_full_disk_too(tmp_path):
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        writer = store(tmp_path)
        writer.save(1, state(1))
        with pytest.raises(CheckpointError, match=r"No space left.* step 1 is whole"):
            writer.save(2, {"weights": np.zeros(1_000_000)})
        assert names(tmp_path) == ["step-1"]
        assert store(tmp_path, "7-2").newest().step == 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_gang_save_is_complete_when_all_parts_are(tmp_path):
    ranks = [
        CheckpointStore(tmp_path, write_token="7-1", rank=rank, ranks=2, gang_timeout_s=10)
        for rank in (0, 1)
    ]
    threads = [
        threading.Thread(target=ranks[rank].save, args=(4, {"rank": rank})) for rank in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in (0, 1):
        checkpoint = store(tmp_path, "7-2", rank=rank, ranks=2).newest()
        assert (checkpoint.state, checkpoint.first_state) == ({"rank": rank}, {"rank": 0})


def test_a_gang_save_without_one_part_stays_invisible(tmp_path):
    with pytest.raises(CheckpointError, match="rank 1 did not save step 4"):
        store(tmp_path, rank=0, ranks=2, gang_timeout_s=0.1).save(4, {})
    with pytest.raises(CheckpointError, match="rank 0 did not commit step 4"):
        store(tmp_path, rank=1, ranks=2, gang_timeout_s=0.1).save(4, {})
    assert store(tmp_path, "7-2", rank=0, ranks=2).newest() is None
    assert names(tmp_path) == []


def test_a_save_of_another_number_of_workers_is_refused(tmp_path):
    store(tmp_path).save(1, {})
    with pytest.raises(CheckpointMismatchError, match="saved by 1 workers, this run has 2"):
        store(tmp_path, "7-2", ranks=2).newest()
