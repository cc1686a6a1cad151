"""Repairs a journal: copies everything that is sound into a new file, which takes the place of the broken one.

Always true: the broken file stays beside the new one, complete, as `NAME.broken-TIME`; nothing is changed before that
copy is on disk. No run uses the journal meanwhile. A row whose verdict is broken but whose cost is sound stays as a
failed verdict that is never reused, so that the cap still counts what it cost. A cost that was changed is set to what
was written, if its copy and the checksum prove that. Of a damaged WAL, which SQLite takes up to the first broken frame,
the repair also keeps the rows that the whole frames behind it hold, if their own checksums prove them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from rewardflow.errors import JournalError
from rewardflow.reward.journal.database import (
    LOCK_TIMEOUT_S,
    close,
    open_for_reading,
    open_for_writing,
    require_file,
    translated_errors,
)
from rewardflow.reward.journal.integrity import check_journal
from rewardflow.reward.journal.journal_lock import lock_run
from rewardflow.reward.journal.reservations import copy_reservations
from rewardflow.reward.journal.row_checksums import CHECKSUM_COLUMNS, row_checksums
from rewardflow.reward.journal.row_scan import ScannedRow, scan
from rewardflow.reward.journal.verdict_rows import COLUMNS, failed_document
from rewardflow.reward.journal.wal_frames import find_damage, recover_pages

logger = logging.getLogger(__name__)

_VERDICT_LOST: Final = "its verdict was broken in the journal"
_TEXT_COLUMNS: Final = ("run", "group_id", "reward", "identity", "kind", "verdict", "rollout")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    rows_kept: int
    costs_kept: int  # rows that lost their verdict and keep their place and cost
    costs_restored: int  # rows whose changed cost is again what was written
    rows_lost: int
    tables_cut_short: tuple[str, ...]  # other tables of which not all rows could be read
    pages_lost: int  # whose newest state was in a broken frame of the WAL: rows of it may be lost that nothing names
    broken_file: Path


def repair_journal(path: str | os.PathLike[str], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> RepairResult:
    """Replaces the journal by one that holds its sound rows; raises `JournalLocked` while a run uses it."""
    path = Path(path).resolve()  # the file itself is replaced, not a link to it
    require_file(path)
    draft, recovered = (path.with_name(f"{path.name}-{name}") for name in ("repaired", "recovered"))
    with lock_run(path, None):
        try:
            broken_file = _keep_copy(path)
            _remove(draft)
            _remove(recovered)
            with (
                translated_errors(path),
                _Sources(path, recovered, lock_timeout_s) as sources,
                contextlib.closing(open_for_writing(draft, lock_timeout_s, exclusive=True)) as new,
            ):
                result = _copy_all(sources, new, broken_file)
                close(new)
            if not check_journal(draft).is_sound:
                raise JournalError(f"the repaired journal must be sound, got a broken one; {path} is unchanged")
            for suffix in ("-wal", "-shm"):  # of the old file; SQLite would take them for the new one's
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            os.replace(draft, path)
        except OSError as error:
            raise JournalError(f"cannot repair the journal {path}: {error.strerror or error}") from error
        finally:
            _remove(draft)
            _remove(recovered)
    return result


def repair_for_a_run(path: Path, *, lock_timeout_s: float) -> None:
    """Repairs a journal with a damaged WAL that a run is about to use, so that it pays again only for what is broken.

    For runs without a cap: the money of rows that are lost is no longer counted. A journal that cannot be repaired, as
    while another run uses it, stays as it is, and the run goes on with what SQLite takes of it.
    """
    logger.warning("journal %s: its -wal changed on disk; repairs it, which takes long for many verdicts", path)
    try:
        repaired = repair_journal(path, lock_timeout_s=lock_timeout_s)
    except JournalError as error:
        logger.warning("the journal was not repaired: %s", error)
        return
    has_lost = repaired.costs_kept or repaired.rows_lost or repaired.tables_cut_short or repaired.pages_lost
    lost = "; others are lost, with what they had cost, and their calls are made again" if has_lost else ""
    logger.error(
        "journal %s: its -wal changed on disk, and the journal was repaired: it keeps %d verdicts%s. The broken file "
        "is %s",
        path,
        repaired.rows_kept,
        lost,
        repaired.broken_file,
    )


class _Sources:
    """What a journal's rows are read from: the journal as SQLite shows it, and what else a damaged WAL holds.

    SQLite's state comes first. It is not always the older one: a run without a cap goes on with it, and writes over the
    WAL from the broken frame on.
    """

    def __init__(self, path: Path, recovered: Path, lock_timeout_s: float) -> None:
        self.connections: list[sqlite3.Connection] = []
        self.pages_lost = 0
        self._path = path
        self._recovered = recovered
        self._lock_timeout_s = lock_timeout_s

    def __enter__(self) -> Self:
        if find_damage(self._path) is None:
            self.connections.append(open_for_reading(self._path, self._lock_timeout_s))
            return self
        os.close(os.open(self._recovered, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self.pages_lost = recover_pages(self._path, self._recovered)
        errors: list[JournalError] = []
        for path in (self._path, self._recovered):
            try:  # either may lack the schema, if that was in the broken frame
                self.connections.append(open_for_reading(path, self._lock_timeout_s))
            except JournalError as error:
                errors.append(error)
        if not self.connections:
            raise errors[0]
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.close()


def _keep_copy(path: Path) -> Path:
    copy = path.with_name(f"{path.name}.broken-{time.strftime('%Y%m%dT%H%M%S')}")
    for suffix in ("", "-wal"):
        source = path.with_name(path.name + suffix)
        if source.exists() and (source == path or source.stat().st_size):  # a reader leaves an empty WAL
            handle = os.open(f"{copy}{suffix}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as target, source.open("rb") as content:
                shutil.copyfileobj(content, target)
                target.flush()
                os.fsync(target.fileno())
    return copy


def _remove(draft: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def _copy_all(sources: _Sources, new: sqlite3.Connection, broken_file: Path) -> RepairResult:
    new.execute("BEGIN")
    rows = _CopiedRows(new)
    for old in sources.connections:
        rows.copy(old)
    cut_short = dict.fromkeys(_copy_other_tables(sources.connections, new))
    new.execute("COMMIT")
    return RepairResult(
        rows_kept=rows.num_kept,
        costs_kept=rows.num_costs,
        costs_restored=rows.num_restored,
        rows_lost=rows.num_lost(),
        tables_cut_short=tuple(cut_short),
        pages_lost=sources.pages_lost,
        broken_file=broken_file,
    )


@dataclass(slots=True)
class _CopiedRows:
    """The verdicts in the new journal, each once, from whichever source."""

    new: sqlite3.Connection
    num_kept: int = 0
    num_costs: int = 0
    num_restored: int = 0
    last_id: int = 0
    seen: set[int] = field(default_factory=set)  # the hashes of the rows of earlier sources
    found: list[set[int]] = field(default_factory=list)  # the ids in each source that are there
    lost: list[list[int]] = field(default_factory=list)  # and those that are not

    def copy(self, old: sqlite3.Connection) -> None:
        found: set[int] = set()
        lost: list[int] = []
        copied: set[int] = set()
        for row in scan(old):
            name = hash(row.values)
            if name in self.seen or self._copy(row):
                found.add(row.id)
                copied.add(name)
            else:
                lost.append(row.id)
        self.seen |= copied
        self.found.append(found)
        self.lost.append(lost)

    def _copy(self, found: ScannedRow) -> bool:
        """Inserts a row as far as it is sound; returns False if nothing of it is."""
        row = found.with_cost_restored()
        is_sound = row.problem() is None
        if not is_sound and not row.has_sound_rest:
            return False
        # A row under a changed id gets a new one, so that no other row has it and the rows keep their order.
        row_id = row.id if row.id > self.last_id and not row.is_moved else None
        try:
            self.last_id = _insert(self.new, row_id, row, is_sound=is_sound)
        except (sqlite3.IntegrityError, UnicodeError):  # an early row without checksums, of impossible values
            return False
        self.num_kept += is_sound
        self.num_restored += row.values != found.values
        self.num_costs += not is_sound
        return True

    def num_lost(self) -> int:
        """Returns how many ids are lost in a source and there in no other, each once."""
        lost: list[int] = []
        for number, ids in enumerate(self.lost):
            elsewhere = set[int]().union(*self.found[:number], *self.found[number + 1 :], *self.lost[:number])
            lost += [row_id for row_id in ids if row_id not in elsewhere]
        return len(lost)


def _insert(new: sqlite3.Connection, row_id: int | None, row: ScannedRow, *, is_sound: bool) -> int:
    """Inserts a row, without its verdict if that is broken; returns the id that it got."""
    values = _as_texts(row.values) if is_sound else _without_verdict(row)
    checksums = (row.verdict_crc32, row.rest_crc32, row.cost_copy_usd) if is_sound else row_checksums(values)
    places = ", ".join("?" * (1 + len(values) + len(checksums)))
    cursor = new.execute(
        f"INSERT INTO verdicts (id, {COLUMNS}, {CHECKSUM_COLUMNS}) VALUES ({places})", (row_id, *values, *checksums)
    )
    return int(cursor.lastrowid or 0)


def _as_texts(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Decodes texts, which `scan` reads as bytes, so that SQLite stores them as texts again."""
    named = zip(COLUMNS.split(", "), values, strict=True)
    return tuple(
        value.decode("utf-8", "surrogateescape") if name in _TEXT_COLUMNS and isinstance(value, bytes) else value
        for name, value in named
    )


def _without_verdict(row: ScannedRow) -> tuple[Any, ...]:
    columns = dict(zip(COLUMNS.split(", "), _as_texts(row.values), strict=True))
    document = failed_document("cancelled", _VERDICT_LOST)
    return tuple((columns | {"value": None, "kind": "cancelled", "verdict": document}).values())


def _copy_other_tables(sources: Sequence[sqlite3.Connection], new: sqlite3.Connection) -> Iterator[str]:
    """Copies tables beside the verdicts, as far as each can be read; yields the names of those that were cut short."""
    done = {"verdicts"}
    for old in sources:
        old.text_factory = str
        tables = old.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        there = {name for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for name, sql in tables:
            if name.startswith("sqlite_") or name in done:
                continue
            if name == "reservations":  # of all sources: each row is the newest
                if not copy_reservations(old, new):
                    yield name
                continue
            done.add(name)
            if name not in there:
                new.execute(sql)
            quoted = '"' + name.replace('"', '""') + '"'
            try:
                for row in old.execute(f"SELECT * FROM {quoted}"):
                    new.execute(f"INSERT INTO {quoted} VALUES ({', '.join('?' * len(row))})", row)
            except sqlite3.DatabaseError:
                yield name
