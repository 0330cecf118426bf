"""A log is cut into segments by size, and keeps what it can on a full disk."""

from launcher import log_writer
from launcher.log_writer import LogWriter


def test_segments_are_filled_and_the_oldest_dropped(tmp_path):
    writer = LogWriter(str(tmp_path), "t", segment_bytes=4, segments=2)
    for piece in (b"abc", b"defghi", b"j"):
        writer.write(piece)
    writer.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "t.log.4": b"efgh",
        "t.log.8": b"ij",
    }


def test_a_full_disk_loses_output_and_nothing_else(tmp_path, monkeypatch):
    writer = LogWriter(str(tmp_path), "t", segment_bytes=100, segments=2)
    writer.write(b"kept ")

    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_writer.os, "write", full)
        writer.write(b"lost ")
    writer.write(b"kept")
    writer.close()
    assert (tmp_path / "t.log").read_bytes() == b"kept kept"
