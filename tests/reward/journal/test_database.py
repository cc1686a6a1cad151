"""The journal's file: a foreign file is refused, a new one is private, and a process can lock it for itself."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardflow.errors import JournalError, JournalLocked, NewerJournal, NotAJournal
from rewardflow.reward.journal.database import (
    APPLICATION_ID,
    close,
    network_file_system,
    open_for_reading,
    open_for_writing,
)


def write(path: Path, *, exclusive: bool | None = None) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(open_for_writing(path, 0.05, exclusive=exclusive))


def read(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(open_for_reading(path, 0.05))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


# -- whose it is --


@pytest.mark.usefixtures("careless_umask")
def test_a_new_journal_is_private_and_marked_as_ours(path: Path) -> None:
    with write(path):
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.usefixtures("careless_umask")
def test_a_new_journal_is_private_where_a_link_leads_to_a_file_that_is_still_to_be_made(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "journal.db").symlink_to(Path("large disk") / "journal.db")
    with write(tmp_path / "journal.db"):
        assert {file.stat().st_mode & 0o777 for file in (tmp_path / "large disk").iterdir()} == {0o600}


@pytest.mark.parametrize("name", [":memory:", "file:journal.db", "file:journal.db?mode=memory"])
def test_a_name_that_means_something_to_sqlite_is_the_name_of_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with write(Path(name)):
        pass
    assert [file.name for file in tmp_path.iterdir()] == [name]
    with read(Path(name)) as connection:
        assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (0,)


@pytest.mark.parametrize("content", [b"x", b"x" * 511, b"my notes\n" * 1000, b"SQLite format 3\0 but not really" * 50])
def test_a_file_that_is_something_else_is_refused_and_left_as_it_was(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(NotAJournal, match=r"journal\.db"):
        write(path)
    with pytest.raises(NotAJournal):
        read(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_as_it_was(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    content = path.read_bytes()
    with pytest.raises(NotAJournal, match="another SQLite database"):
        write(path)
    assert path.read_bytes() == content


def test_a_journal_of_a_later_rewardflow_is_refused(path: Path) -> None:
    with write(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    for open_it in (write, read):
        with pytest.raises(NewerJournal, match="its schema is 7"):
            open_it(path)


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.touch()
    with pytest.raises(NotAJournal, match="an empty file"):
        read(path)
    with write(path), read(path) as connection:
        assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (0,)


def test_a_place_where_no_file_can_be_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="directory"):
        write(tmp_path)
    with pytest.raises(JournalError, match=r"absent/journal\.db: No such file or directory"):
        write(tmp_path / "absent" / "journal.db")
    with pytest.raises(JournalError, match="must be an existing file"):
        read(tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()


# -- who else may have it --


def test_a_file_that_another_holds_alone_is_refused_after_a_while(path: Path) -> None:
    with write(path, exclusive=True):
        for open_it in (write, read):
            with pytest.raises(JournalLocked, match=r"journal\.db"):
                open_it(path)
    with write(path), read(path):
        pass


def test_closing_leaves_one_file_even_where_only_one_may_have_it(path: Path) -> None:
    for exclusive in (False, True):
        connection = open_for_writing(path, 0.05, exclusive=exclusive)
        connection.execute("DELETE FROM verdicts")
        close(connection)
        assert os.listdir(path.parent) == [path.name]


def test_a_connection_to_read_with_cannot_write(path: Path) -> None:
    with write(path), read(path) as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM verdicts")


MOUNTS = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / /data rw - nfs4 server:/data rw
31 30 0:41 / /data/scratch rw - xfs /dev/vdb rw
32 22 0:42 / /my\040share rw - cifs //server/share rw
33 22 0:43 / /bucket rw - fuse.gcsfuse bucket rw
34 22 0:44 / /stick rw - fuseblk /dev/sdb1 rw
35 22 0:45 / /database rw - btrfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/journal.db", None),
        ("/data/journal.db", "nfs4"),
        ("/data/scratch/journal.db", None),
        ("/my share/journal.db", "cifs"),
        ("/bucket/a/journal.db", "fuse.gcsfuse"),
        ("/stick/journal.db", None),
        ("/database/journal.db", None),
    ],
)
def test_network_file_systems_are_recognised_by_their_mount(path: str, kind: str | None) -> None:
    assert network_file_system(Path(path), MOUNTS) == kind
