"""One rank's file of a save comes back bit for bit, and damage is found."""

import json

import numpy as np
import pytest

from tiresias.errors import CorruptCheckpointError, UsageError
from tiresias.part import ALIGNMENT_BYTES, read_part, write_part


def round_trip(folder, state):
    write_part(folder, state, step=3, rank=0, ranks=1)
    return read_part(folder, 0).state


def test_a_nested_state_comes_back_as_it_was(tmp_path):
    state = {"epoch": 2, "lr": 0.1, "name": "é", "none": None, "done": False, "list": [1, [2.5]]}
    assert round_trip(tmp_path, state) == state


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
def test_arrays_come_back_bit_for_bit(tmp_path, dtype):
    array = np.random.default_rng(1).normal(size=(3, 5)).astype(dtype)
    back = round_trip(tmp_path, {"weights": [array]})["weights"][0]
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()
    assert back.shape == array.shape


def test_scalars_empty_and_strided_arrays_keep_their_shape(tmp_path):
    state = {"zero": np.float32(3.5), "empty": np.zeros((0, 4)), "turned": np.eye(3)[:, ::2].T}
    back = round_trip(tmp_path, state)
    assert back["zero"].shape == ()
    assert back["zero"] == np.float32(3.5)
    assert back["empty"].shape == (0, 4)
    assert np.array_equal(back["turned"], state["turned"])


def test_bytes_come_back(tmp_path):
    assert round_trip(tmp_path, {"blob": b"\0\xff"}) == {"blob": b"\0\xff"}


def test_arrays_are_aligned_and_named_by_their_path(tmp_path):
    write_part(tmp_path, {"a": np.ones(3), "b": {"c": np.ones(5)}}, step=1, rank=0, ranks=1)
    content = json.loads(json.loads((tmp_path / "manifest-0.json").read_text())["content"])
    assert [entry["path"] for entry in content["arrays"]] == ["a", "b/c"]
    assert all(entry["offset"] % ALIGNMENT_BYTES == 0 for entry in content["arrays"])
    assert "numpy" in content["versions"]


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({1: 2}, "use text keys"),
        ({"f": object()}, "a object cannot be saved"),
        ({"o": np.array([object()])}, "Python objects"),
    ],
)
def test_a_state_that_cannot_be_saved_is_named(tmp_path, state, problem):
    with pytest.raises(UsageError, match=problem):
        write_part(tmp_path, state, step=1, rank=0, ranks=1)


@pytest.mark.parametrize("name", ["data-0.bin", "manifest-0.json"])
def test_one_flipped_bit_is_found(tmp_path, name):
    write_part(tmp_path, {"a": np.arange(100.0), "note": "text"}, step=1, rank=0, ranks=1)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError):
        read_part(tmp_path, 0)


def test_a_file_of_another_format_is_refused(tmp_path):
    (tmp_path / "manifest-0.json").write_text('{"format": 9, "content": "", "crc32": 0}')
    with pytest.raises(CorruptCheckpointError, match="format 9"):
        read_part(tmp_path, 0)
