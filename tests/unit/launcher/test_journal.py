"""The journal: what is recorded is there after a crash."""

import asyncio

import pytest

from broker.schemas.run import RunExited
from launcher import journal as journal_module
from launcher.core.run_state import BootSeen, EpochSeen, ReportMade, RunKept
from launcher.journal import Journal, JournalDamagedError
from tests.unit.launcher.samples import NODE, prepare

KEPT = RunKept(prepare=prepare(), ports={"worker-0": 1})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


async def test_a_journal_read_again_holds_what_was_recorded(path):
    journal = Journal(path)
    journal.record(KEPT)
    journal.record(EpochSeen(epoch=4))
    again = Journal(path)
    assert again.book == journal.book
    assert list(again.book.runs) == ["7-1"]
    assert path.read_bytes().count(b"\n") == 1
    assert path.stat().st_mode & 0o777 == 0o600
    await journal.close()
    await again.close()


async def test_a_torn_last_line_is_left_out(path):
    journal = Journal(path)
    journal.record(EpochSeen(epoch=4))
    await journal.close()
    with path.open("ab") as file:
        file.write(b'{"record":"epoch","epo')
    again = Journal(path)
    assert again.book.epoch == 4
    await again.close()


def test_a_damaged_journal_is_refused_with_the_line(path):
    path.write_bytes(b'{"record":"epoch","epoch":1}\nnonsense\n')
    with pytest.raises(JournalDamagedError, match="damaged in line 2"):
        Journal(path)


async def test_records_made_together_share_one_sync(path, monkeypatch):
    synced = []
    monkeypatch.setattr(journal_module.os, "fdatasync", synced.append)
    journal = Journal(path)

    async def one(number: int) -> None:
        journal.record(EpochSeen(epoch=number))
        await journal.sync()

    await asyncio.gather(*(one(number) for number in range(100)))
    assert len(synced) <= 2
    await journal.sync()
    assert len(synced) <= 2
    await journal.close()


async def test_a_failed_sync_fails_all_that_wait_for_it(path, monkeypatch):
    def fail(_file: int) -> None:
        raise OSError("the disk is gone")

    journal = Journal(path)
    monkeypatch.setattr(journal_module.os, "fdatasync", fail)
    journal.record(EpochSeen(epoch=1))
    with pytest.raises(OSError, match="the disk is gone"):
        await journal.sync()
    monkeypatch.undo()
    await journal.close()


async def test_a_large_journal_is_compacted_while_others_record(path, monkeypatch):
    monkeypatch.setattr(journal_module, "COMPACT_ABOVE_BYTES", 2_000)
    journal = Journal(path)
    await journal.compact()
    for number in range(100):
        journal.record(EpochSeen(epoch=number))
    compacting = asyncio.create_task(journal.compact())
    while not compacting.done():
        journal.record(BootSeen(boot_id="during"))
        await journal.sync()
    await compacting
    journal.record(KEPT)
    journal.record(ReportMade(report=RunExited(node=NODE, run_id="7-1")))
    await journal.sync()
    again = Journal(path)
    assert again.book == journal.book
    assert again.book.boot_id == "during"
    await journal.close()
    await again.close()
