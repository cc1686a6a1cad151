"""A journal's file that is deleted, replaced or cut short is noticed."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.files_in_place import FilesInPlace

NO_DATABASE = sqlite3.connect(":memory:", check_same_thread=False)


def fill(connection: sqlite3.Connection, run: str, num_rows: int) -> None:
    row = "INSERT INTO verdicts (key, run, verdict, rollout) VALUES (x'00', ?, '{}', ?)"
    connection.execute("BEGIN")
    connection.executemany(row, [(run, "x" * 3000)] * num_rows)
    connection.execute("COMMIT")


def test_a_deleted_or_replaced_file_is_named_and_one_that_came_back_is_fine(tmp_path: Path) -> None:
    path, wal = tmp_path / "j.db", tmp_path / "j.db-wal"
    path.write_bytes(b"journal")
    files = FilesInPlace(path, NO_DATABASE)
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


def test_the_files_are_in_place_when_the_process_goes_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("j.db")
    path.write_bytes(b"journal")
    files = FilesInPlace(path, NO_DATABASE)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert files.problem() is None
    path.write_bytes(b"another file of the same name")
    (tmp_path / "j.db").unlink()
    assert files.problem() == f"{tmp_path / 'j.db'} was deleted or moved while this run used it"


def test_a_wal_is_noticed_beside_the_file_that_a_link_names_and_so_is_a_link_to_another_file(tmp_path: Path) -> None:
    link, real = tmp_path / "link.db", tmp_path / "real.db"
    link.symlink_to(real)
    with closing(open_for_writing(link, 1.0)) as connection:
        files = FilesInPlace(link, connection)
        fill(connection, "run", 1)
        files.remember()
        assert files.problem() is None
        wal = tmp_path / "real.db-wal"
        wal.rename(tmp_path / "away")
        assert files.problem() == f"{wal} was deleted or moved while this run used it"
        (tmp_path / "away").rename(wal)
        (tmp_path / "other.db").write_bytes(real.read_bytes())
        link.unlink()
        link.symlink_to(tmp_path / "other.db")
        assert files.problem() == f"{link} was replaced by another file while this run used it"


def test_a_journal_without_a_wal_is_in_place(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    path.write_bytes(b"journal")
    files = FilesInPlace(path, NO_DATABASE)
    files.remember()
    assert files.problem() is None


def test_a_journal_may_grow_and_its_wal_may_shrink_but_a_shorter_journal_was_overwritten(tmp_path: Path) -> None:
    path, wal = tmp_path / "j.db", tmp_path / "j.db-wal"
    path.write_bytes(b"journal")
    wal.write_bytes(b"log")
    files = FilesInPlace(path, NO_DATABASE)
    path.write_bytes(b"longer journal")
    files.remember()
    wal.write_bytes(b"")
    assert files.problem() is None
    path.write_bytes(b"journal")
    assert files.problem() == f"{path} was overwritten or cut short while this run used it"


def test_a_journal_that_another_program_vacuumed_is_in_place_when_sqlite_makes_it_shorter(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with closing(open_for_writing(path, 1.0)) as own, closing(sqlite3.connect(path, isolation_level=None)) as other:
        fill(own, "kept", 300)
        fill(own, "deleted", 300)
        own.execute("PRAGMA wal_checkpoint")
        files = FilesInPlace(path, own)
        for merging in (other, own):
            long = path.stat().st_size
            other.execute("DELETE FROM verdicts WHERE id IN (SELECT id FROM verdicts LIMIT 200)")
            other.execute("VACUUM")
            merging.execute("PRAGMA wal_checkpoint")
            assert path.stat().st_size < long
            assert files.problem() is None
            fill(own, "kept", 1)
            files.remember()


def test_a_copy_of_an_older_journal_over_the_one_in_use_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with closing(open_for_writing(path, 1.0)) as own:
        fill(own, "run", 3)
        own.execute("PRAGMA wal_checkpoint")
        older = path.read_bytes()
        fill(own, "run", 300)
        own.execute("PRAGMA wal_checkpoint")
        files = FilesInPlace(path, own)
        fill(own, "run", 1)
        files.remember()
        path.write_bytes(older)  # into the same file, as `cp` does
        assert files.problem() == f"{path} was overwritten or cut short while this run used it"


def cut_to_nothing(wal: Path) -> None:
    wal.write_bytes(b"")


def cut_to_its_first_pages(wal: Path) -> None:
    os.truncate(wal, 5000)


def fill_with_zeros(wal: Path) -> None:
    with wal.open("r+b") as file:
        file.write(bytes(wal.stat().st_size))


@pytest.mark.parametrize("overwrite", [cut_to_nothing, cut_to_its_first_pages, fill_with_zeros])
def test_a_wal_that_was_overwritten_in_its_place_is_noticed(tmp_path: Path, overwrite: Callable[[Path], None]) -> None:
    path, wal = tmp_path / "j.db", tmp_path / "j.db-wal"
    with closing(open_for_writing(path, 1.0)) as own, closing(FilesInPlace(path, own)) as files:
        for _ in range(2):
            fill(own, "run", 10)
            files.remember()
            assert files.problem() is None
        overwrite(wal)
        if wal.stat().st_size == 0:  # so another run leaves it too, but then the next commit writes a header
            assert files.problem() is None
            fill(own, "run", 1)
            files.remember()
        assert files.problem() == f"{wal} was overwritten or cut short while this run used it"


def test_a_wal_that_sqlite_or_another_run_begins_anew_is_in_place(tmp_path: Path) -> None:
    path, wal = tmp_path / "j.db", tmp_path / "j.db-wal"
    with (
        closing(open_for_writing(path, 1.0)) as own,
        closing(open_for_writing(path, 1.0)) as other,
        closing(FilesInPlace(path, own)) as files,
    ):
        for mode in ("RESTART", "TRUNCATE", "PASSIVE", "TRUNCATE"):
            for merging, writing in itertools.product((own, other), repeat=2):
                fill(own, "run", 20)
                files.remember()
                assert files.problem() is None
                merging.execute(f"PRAGMA wal_checkpoint({mode})")
                assert files.problem() is None
                fill(writing, "other run", 1)
                assert files.problem() is None
                assert wal.stat().st_size > 0
