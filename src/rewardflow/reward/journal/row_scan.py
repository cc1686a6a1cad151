"""Reads every verdict of a journal, also from a file with broken pages or changed bytes.

Always true: a scan returns each row once, and says which rows it could not read. An index of the table lists the ids
that must be there, so that rows which SQLite skips without an error (after a changed id it ends a range early) are read
one by one, and those that cannot be found are counted as lost.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rewardflow.reward.journal.database import column_names
from rewardflow.reward.journal.row_checksums import CHECKSUM_COLUMNS, row_checksums
from rewardflow.reward.journal.verdict_rows import COLUMNS, is_json, is_readable_verdict

PLACE_LOST: Final = "its place in the file is lost"
_IDS_AT_ONCE: Final = 500
_MIN_ROW_BYTES: Final = 64
_MAX_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ScannedRow:
    """One row as it is on disk, texts as bytes: the values in the order of `COLUMNS`, or none if it is unreadable."""

    id: int
    values: tuple[Any, ...] = ()
    verdict_crc32: int | None = None
    rest_crc32: int | None = None
    error: str | None = None
    is_moved: bool = False  # no index knows the id, or another row has it too

    @property
    def has_sound_rest(self) -> bool:
        """Whether everything but the verdict is proven to be as it was written: the place and the cost."""
        return bool(self.values) and self.rest_crc32 is not None and row_checksums(self.values)[1] == self.rest_crc32

    def problem(self) -> str | None:
        """Says what is wrong with the row, or returns None."""
        if self.error is not None:
            return f"it cannot be read: {self.error}"
        verdict_crc32, rest_crc32 = row_checksums(self.values)
        if self.verdict_crc32 not in (None, verdict_crc32):
            return "its verdict does not match its checksum"
        if self.rest_crc32 not in (None, rest_crc32):
            return "its place, its cost or its rollout does not match its checksum"
        if not is_readable_verdict(self.values[-2]) or not is_json(self.values[-1]):
            return "it holds no readable JSON"
        return None


def scan(connection: sqlite3.Connection) -> Iterator[ScannedRow]:
    """Yields all verdicts, by id as far as the ids are sound, and a row with an error for each that is lost."""
    checksums = CHECKSUM_COLUMNS if "rest_crc32" in column_names(connection) else "NULL, NULL"
    select = f"SELECT id, {COLUMNS}, {checksums} FROM verdicts NOT INDEXED"
    connection.text_factory = bytes  # broken text is no UTF-8
    yield from _Scan(connection, select, _listed_ids(connection)).rows()


@dataclass(frozen=True, slots=True)
class _ListedIds:
    """The ids that an index lists."""

    ids: frozenset[int]
    is_complete: bool  # SQLite read the index to its end

    @classmethod
    def of(cls, connection: sqlite3.Connection, index: str, columns: Sequence[str]) -> _ListedIds:
        """Reads an index; if it is broken, from both ends up to the broken page."""
        ids: set[int] = set()
        for direction in ("ASC", "DESC"):
            order = ", ".join(f"{column} {direction}" for column in columns)
            try:
                for (row_id,) in connection.execute(f"SELECT id FROM verdicts INDEXED BY {index} ORDER BY {order}"):
                    ids.add(row_id)
            except sqlite3.DatabaseError:
                continue
            return cls(frozenset(ids), is_complete=direction == "ASC")
        return cls(frozenset(ids), is_complete=False)


def _listed_ids(connection: sqlite3.Connection) -> _ListedIds:
    """Returns what the longer of two complete indexes lists; without a complete one, what both list."""
    by_key = _ListedIds.of(connection, "verdicts_by_key", ("key",))
    by_run = _ListedIds.of(connection, "verdicts_by_run", ("run", "cost_usd"))
    if by_key.is_complete or by_run.is_complete:
        return max(by_key, by_run, key=lambda listed: (listed.is_complete, len(listed.ids)))
    return _ListedIds(by_key.ids | by_run.ids, is_complete=False)


@dataclass(slots=True)
class _Scan:
    """One pass over the table. Call `rows` once."""

    connection: sqlite3.Connection
    select: str
    listed: _ListedIds
    seen: dict[int, int] = field(default_factory=dict)  # the hash of each returned row by its id
    missing: dict[int, str] = field(default_factory=dict)  # ids that were not found, with the reason
    unlisted_keys: Counter[bytes] = field(default_factory=Counter)  # of sound rows whose ids no index lists
    doubled: set[int] = field(default_factory=set)  # the hashes of rows that have the same id
    num_unnamed: int = 0  # rows of which it is unknown what id they had: two have the same, or the row is broken too

    def rows(self) -> Iterator[ScannedRow]:
        ids = sorted(self.listed.ids if self.listed.is_complete else self.listed.ids.union(self._possible_ids()))
        before = -_MAX_ID
        for start in range(0, len(ids), _IDS_AT_ONCE):
            some = ids[start : start + _IDS_AT_ONCE]
            yield from sorted(self._after(before, some), key=lambda row: row.id)
            before = some[-1]
        yield from self._readable(" WHERE id > ? ORDER BY id", before)  # ids that no index lists
        if self.missing:
            # SQLite finds no row under a changed id, but comes across it when it reads all rows in turn.
            yield from self._readable(" ORDER BY id")
            yield from self._readable(" ORDER BY id DESC")
        yield from self._lost()

    def _possible_ids(self) -> range:
        """Returns the ids that the table may have if no index lists them all. A changed id may be far too large."""
        (num_pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = self.connection.execute("PRAGMA page_size").fetchone()
        most = num_pages * page_bytes // _MIN_ROW_BYTES
        try:
            (last_id,) = self.connection.execute("SELECT coalesce(max(id), 0) FROM verdicts NOT INDEXED").fetchone()
        except sqlite3.DatabaseError:
            last_id = most
        return range(1, min(most, max(last_id, 0, *self.listed.ids)) + 1)

    def _after(self, before: int, ids: Sequence[int]) -> Iterator[ScannedRow]:
        """Reads the rows after `before` up to the last of `ids`; halves `ids` until only the broken ones are left."""
        try:
            found = self._fetch(" WHERE id > ? AND id <= ? ORDER BY id", before, ids[-1])
        except sqlite3.DatabaseError:
            if len(ids) == 1:
                yield from self._one(ids[0])
                return
            middle = len(ids) // 2
            yield from self._after(before, ids[:middle])
            yield from self._after(ids[middle - 1], ids[middle:])
            return
        yield from self._new(found)
        for row_id in ids:
            if row_id not in self.seen:
                yield from self._one(row_id)

    def _one(self, row_id: int) -> Iterator[ScannedRow]:
        try:
            found = self._fetch(" WHERE id = ?", row_id)
        except sqlite3.DatabaseError as error:
            self.missing[row_id] = str(error)
            return
        if not found and row_id in self.listed.ids:
            self.missing[row_id] = PLACE_LOST
        yield from self._new(found)

    def _readable(self, where: str, *values: int) -> Iterator[ScannedRow]:
        """Yields the rows up to the first that cannot be read, without those that were returned before."""
        with contextlib.suppress(sqlite3.DatabaseError):
            for row in self.connection.execute(self.select + where, values):
                yield from self._new([row])

    def _fetch(self, where: str, *values: int) -> list[tuple[Any, ...]]:
        return self.connection.execute(self.select + where, values).fetchall()

    def _new(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[ScannedRow]:
        """Leaves out rows that were returned before: a broken page may lead SQLite to the same row twice."""
        for row in rows:
            row_id, *values, verdict_crc32, rest_crc32 = row
            if self.seen.get(row_id) == hash(row) or hash(row) in self.doubled:
                continue
            is_doubled, is_unlisted = row_id in self.seen, row_id not in self.listed.ids
            if is_doubled:
                self.num_unnamed += 1
                self.doubled |= {self.seen[row_id], hash(row)}
            self.seen[row_id] = hash(row)
            is_moved = is_doubled or (is_unlisted and self.listed.is_complete)
            scanned = ScannedRow(row_id, tuple(values), verdict_crc32, rest_crc32, is_moved=is_moved)
            if is_unlisted and not is_doubled:
                if scanned.problem() is None:
                    self.unlisted_keys[values[0]] += 1
                else:
                    self.num_unnamed += self.listed.is_complete
            yield scanned

    def _lost(self) -> Iterator[ScannedRow]:
        """Yields the missing ids, but not those whose row was returned under another id."""
        missing = {row_id: why for row_id, why in sorted(self.missing.items()) if row_id not in self.seen}
        keys: dict[int, bytes] = {}
        if missing:
            with contextlib.suppress(sqlite3.DatabaseError):
                for row_id, key in self.connection.execute("SELECT id, key FROM verdicts INDEXED BY verdicts_by_key"):
                    if row_id in missing:
                        keys[row_id] = key
        num_without_key = 0
        for row_id, why in missing.items():
            if row_id in keys and self.unlisted_keys[keys[row_id]] > 0:
                self.unlisted_keys[keys[row_id]] -= 1
            elif self.num_unnamed > 0:
                self.num_unnamed -= 1
            elif self.listed.is_complete and row_id not in keys and num_without_key < self.unlisted_keys.total():
                num_without_key += 1
            else:
                yield ScannedRow(row_id, error=why)
