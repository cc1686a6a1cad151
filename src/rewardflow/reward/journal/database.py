"""Opens the journal's file: one SQLite database, checked before anything is written to it.

Always true: a file of another kind, or of a later rewardflow, is refused and left unchanged; only its owner can read a
file made here; a connection for writing has the schema and keeps every commit that returned (WAL, `synchronous=FULL`).
A damaged WAL is found before SQLite drops a part of it. Errors of SQLite become our errors, with the path and what is
wrong.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rewardflow.errors import DamagedWal, JournalError, JournalLocked, NewerJournal, NotAJournal
from rewardflow.reward.journal.wal_frames import WalDamage, find_damage

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x52464A31  # "RFJ1"
SCHEMA_VERSION: Final = 1
LOCK_TIMEOUT_S: Final = 5.0
MIN_DATABASE_BYTES: Final = 512

_INDEX_BY_RUN: Final = "CREATE INDEX verdicts_by_run ON verdicts (run, cost_usd, cost_copy_usd)"
_SCHEMA: Final = f"""
CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    at_s REAL,
    run TEXT NOT NULL,
    step INTEGER,
    group_id TEXT,
    sample_index INTEGER,
    reward TEXT,
    identity TEXT,
    value REAL,
    kind TEXT,
    attempts INTEGER,
    latency_s REAL,
    cost_usd REAL,
    tokens INTEGER,
    verdict TEXT NOT NULL,
    rollout TEXT NOT NULL,
    verdict_crc32 INTEGER,
    rest_crc32 INTEGER,
    cost_copy_usd REAL
);
CREATE INDEX verdicts_by_key ON verdicts (key);
{_INDEX_BY_RUN};
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_COLUMN_TYPES: Final = dict(re.findall(r"^    (\w+) (\w+)", _SCHEMA, re.MULTILINE))

# Columns that the first journals lack. An earlier rewardflow writes NULL there, so the schema version stays the same.
_LATER_COLUMNS: Final = ("verdict_crc32", "rest_crc32", "cost_copy_usd")

_NETWORK_FILE_SYSTEMS: Final = re.compile(
    r"(nfs|cifs|smb|lustre|gpfs|ceph|beegfs|fuse\.|9p|afs|glusterfs|orangefs|pvfs|panfs|wekafs|ocfs|gfs|virtiofs|ncp)"
)


# -- opening and closing --


def open_for_writing(
    path: Path, lock_timeout_s: float, *, exclusive: bool | None = None, takes_damaged_wal: bool = False
) -> sqlite3.Connection:
    """Opens or creates the journal, for use by one thread at a time.

    `exclusive` locks all other processes out; None does so on network file systems only. `takes_damaged_wal` goes on
    with what SQLite takes of a damaged WAL, and logs an ERROR; the rest of it is then written over.
    """
    _create_private(path)
    if (damage := find_damage(path)) is not None:
        if not takes_damaged_wal:
            raise _refusal(path, damage)
        logger.error(
            "journal %s: %s; this run finds no verdict in it, and makes their calls again. To keep them, end all runs "
            "of the journal and use `rewardflow journal check --repair` before the next one",
            path,
            damage,
        )
    with translated_errors(path), contextlib.ExitStack() as undo:
        connection = sqlite3.connect(
            path.absolute(),  # SQLite reads ":memory:" and "file:..." as something else than the name of a file
            timeout=lock_timeout_s,
            isolation_level=None,
            check_same_thread=False,  # the caller opens it, then the writer thread owns it
            cached_statements=8,  # a statement for a thousand rows takes about a megabyte
        )
        undo.callback(connection.close)
        if is_on_network(path) if exclusive is None else exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _check(connection, path)
        _set_durable(connection, path)
        _create_schema(connection, path)
        undo.pop_all()
    return connection


def open_for_reading(path: Path, lock_timeout_s: float) -> sqlite3.Connection:
    """Opens the journal to read it. What SQLite drops of a damaged WAL is not there, which `find_damage` tells."""
    require_file(path)
    with translated_errors(path), contextlib.ExitStack() as undo:
        connection = _connect_to_read(path, lock_timeout_s)
        undo.callback(connection.close)
        if not _check(connection, path):
            if (damage := find_damage(path)) is not None:
                raise _refusal(path, damage)
            raise NotAJournal(f"the journal must be a file that rewardflow made, got an empty file: {path}")
        undo.pop_all()
    return connection


def _connect_to_read(path: Path, lock_timeout_s: float) -> sqlite3.Connection:
    uri = f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=lock_timeout_s, isolation_level=None)


def _create_private(path: Path) -> None:
    """Creates the file before SQLite does, because SQLite would let other users read it.

    Does not open an existing file: opening and closing it here would drop this process's locks on it. SQLite would
    create the file that a link names, so that one is created here.
    """
    try:
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise JournalError(f"the journal must be a file, got the directory {path}") from None
        # SQLite would take a file this short for an empty one and overwrite it.
        if path.exists() and 0 < path.stat().st_size < MIN_DATABASE_BYTES:
            raise NotAJournal(f"the journal must be a file that rewardflow made, got something else: {path}") from None
    except OSError as error:
        raise JournalError(f"cannot create the journal {path}: {error.strerror}") from error


def close(connection: sqlite3.Connection) -> None:
    """Merges the WAL into the file, so that one file is left, and closes the connection."""
    with contextlib.suppress(sqlite3.Error):  # a reader may block this; the next opening merges the WAL
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def close_without_merging(connection: sqlite3.Connection, path: Path) -> None:
    """Closes the connection and leaves the file as it is, because the WAL holds something else than was written to it.

    SQLite merges the WAL when the last connection closes, unless that one cannot write.
    """
    with contextlib.ExitStack() as last:
        with contextlib.suppress(sqlite3.Error):
            reader = last.enter_context(contextlib.closing(_connect_to_read(path, LOCK_TIMEOUT_S)))
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # connects, also if it then fails
        connection.close()


def require_whole_wal(path: Path) -> None:
    """Raises if SQLite drops commits from the WAL, because then nobody knows what was spent."""
    if (damage := find_damage(path)) is not None:
        raise _refusal(path, damage)


def _refusal(path: Path, damage: WalDamage) -> DamagedWal:
    return DamagedWal(
        f"cannot use the journal {path}: {damage}; `rewardflow journal check --repair {path}` keeps what is whole"
    )


def require_file(path: Path) -> None:
    if not path.is_file():
        raise JournalError(f"the journal must be an existing file, got {path}")


@contextlib.contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite in this block into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from error
    except UnicodeDecodeError as error:  # the sqlite3 module cannot decode a message that quotes broken text
        hint = f"`rewardflow journal check {path}` tells what is broken"
        raise JournalError(f"cannot use the journal {path}: its schema is no readable text; {hint}") from error


def _translated(path: Path, error: sqlite3.Error) -> JournalError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest a detail of it
    if code == sqlite3.SQLITE_NOTADB:
        return NotAJournal(f"the journal must be a file that rewardflow made, got something else: {path}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return JournalLocked(f"the journal is in use by another run or command: {path} ({error})")
    hint = f"; `rewardflow journal check {path}` tells what is broken" if code == sqlite3.SQLITE_CORRUPT else ""
    return JournalError(f"cannot use the journal {path}: {error}{hint}")


# -- the schema --


def _check(connection: sqlite3.Connection, path: Path) -> bool:
    """Returns True for a journal and False for an empty file; refuses any other file without changing it."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id == 0 and version == 0 and num_tables == 0:
        return False
    if application_id != APPLICATION_ID:
        raise NotAJournal(f"the journal must be a file that rewardflow made, got another SQLite database: {path}")
    if version > SCHEMA_VERSION:
        raise NewerJournal(
            f"{path} was written by a later rewardflow: its schema is {version}, this one reads {SCHEMA_VERSION}; "
            f"upgrade rewardflow or name another file"
        )
    return True


def _set_durable(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # pages; the default of 1000 merges the WAL at every commit
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        logger.warning(
            "journal %s: this file system allows no WAL, so commits are safe but slower (mode %s)", path, mode
        )


def _create_schema(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two runs may create the same journal at the same time
    if not _check(connection, path):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
    known = column_names(connection)
    for name in _LATER_COLUMNS:
        if name not in known:
            connection.execute(f"ALTER TABLE verdicts ADD COLUMN {name} {_COLUMN_TYPES[name]}")
    _widen_index(connection)
    if problems := schema_problems(connection):
        hint = f"`rewardflow journal check --repair {path}` keeps its rows"
        raise JournalError(f"cannot use the journal {path}: {'; '.join(problems)}; {hint}")
    connection.execute("COMMIT")


def _widen_index(connection: sqlite3.Connection) -> None:
    """Adds the copy of the cost to the index of a journal of an earlier version."""
    indexed = connection.execute("SELECT count(*) FROM pragma_index_info('verdicts_by_run')").fetchone()
    if indexed == (3,):
        return
    connection.execute("SAVEPOINT widen")
    try:
        connection.execute("DROP INDEX IF EXISTS verdicts_by_run")
        connection.execute(_INDEX_BY_RUN)
    except sqlite3.DatabaseError as error:  # a broken row; sums are right without the index too, only slower
        connection.execute("ROLLBACK TO widen")
        logger.warning("the index of costs could not be made: %s", error)
    connection.execute("RELEASE widen")


def column_names(connection: sqlite3.Connection) -> list[str]:
    """Returns the columns of the verdicts in this file."""
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('verdicts')")]


def schema_problems(connection: sqlite3.Connection) -> list[str]:
    """Says what changed on disk in the schema.

    Under a column of another type SQLite would find other values, or none; a table that begins at the page of another
    one would show that one's rows, and be written over it.
    """
    declared = connection.execute("SELECT name, type FROM pragma_table_info('verdicts')")
    types = {text_of(name): text_of(type_) for name, type_ in declared}
    query = "SELECT rootpage FROM sqlite_master WHERE rootpage > 0 GROUP BY rootpage HAVING count(*) > 1"
    return [
        f"column {name} must be {wanted}, got {types[name]}"
        for name, wanted in _COLUMN_TYPES.items()
        if types.get(name, wanted) != wanted
    ] + [f"one table or index must begin at page {page}, got several" for (page,) in connection.execute(query)]


@contextlib.contextmanager
def texts_as_bytes(connection: sqlite3.Connection) -> Iterator[None]:
    """Reads texts as bytes in this block, because one that is no UTF-8 any more would end a query."""
    before = connection.text_factory
    connection.text_factory = bytes
    try:
        yield
    finally:
        connection.text_factory = before


def text_of(value: object) -> str:
    """Returns a text that was read; some connections read texts as bytes, because a broken one would end the query."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# -- network file systems --


def network_file_system(path: Path, mountinfo: str) -> str | None:
    """Returns the kind of network file system that holds `path`, or None.

    `mountinfo` is the text of /proc/self/mountinfo.
    """
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) > 4 and right:
            mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            if path.is_relative_to(mount) and len(mount) >= len(best):
                best, kind = mount, right.split()[0]
    return kind if _NETWORK_FILE_SYSTEMS.match(kind) else None


def is_on_network(path: Path) -> bool:
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return False
    return network_file_system(path.resolve(), mountinfo) is not None
