"""A journal's file that is deleted, replaced or cut short is noticed."""

from __future__ import annotations

from pathlib import Path

from rewardflow.reward.journal.files_in_place import FilesInPlace


def test_a_deleted_or_replaced_file_is_named_and_one_that_came_back_is_fine(tmp_path: Path) -> None:
    path, wal = tmp_path / "j.db", tmp_path / "j.db-wal"
    path.write_bytes(b"journal")
    files = FilesInPlace(path)
    assert files.problem() is None
    wal.write_bytes(b"log")
    assert files.problem() is None
    files.remember()
    wal.rename(tmp_path / "away")
    assert files.problem() == f"{wal} was deleted or moved while this run used it"
    wal.write_bytes(b"log")
    assert files.problem() == f"{wal} was replaced by another file while this run used it"
    (tmp_path / "away").rename(wal)
    assert files.problem() is None
    path.unlink()
    assert files.problem() == f"{path} was deleted or moved while this run used it"


def test_a_journal_without_a_wal_is_in_place(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    path.write_bytes(b"journal")
    files = FilesInPlace(path)
    files.remember()
    assert files.problem() is None


def test_a_journal_may_grow_and_its_wal_may_shrink_but_a_shorter_journal_was_overwritten(tmp_path: Path) -> None:
    path, wal = tmp_path / "j.db", tmp_path / "j.db-wal"
    path.write_bytes(b"journal")
    wal.write_bytes(b"log")
    files = FilesInPlace(path)
    path.write_bytes(b"longer journal")
    files.remember()
    wal.write_bytes(b"")
    assert files.problem() is None
    path.write_bytes(b"journal")
    assert files.problem() == f"{path} was overwritten or cut short while this run used it"
