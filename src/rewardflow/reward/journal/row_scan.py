"""Reads every verdict of a journal, also from a file with broken pages or changed bytes.

Always true: a scan returns each row once, and says which rows it could not read. The indexes of the table list the ids
that must be there, so that rows which SQLite skips without an error (after a changed id it ends a range early) are read
one by one, and those that cannot be found are counted as lost. Only if both indexes are broken, one of their broken
entries may be counted as a lost row.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rewardflow.reward.journal.database import column_names
from rewardflow.reward.journal.row_checksums import CHECKSUM_COLUMNS, row_checksums, with_cost
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
    cost_copy_usd: Any = None
    error: str | None = None
    is_moved: bool = False  # no index knows the id, or another row has it too

    @property
    def has_sound_rest(self) -> bool:
        """Whether everything but the verdict is proven to be as it was written: the place and the cost."""
        return bool(self.values) and self.rest_crc32 is not None and row_checksums(self.values)[1] == self.rest_crc32

    def with_cost_restored(self) -> ScannedRow:
        """Returns the row with the cost that the checksum proves to be the one that was written, if either copy is."""
        if not self.values or self.rest_crc32 is None:
            return self
        if self.has_sound_rest:
            return replace(self, cost_copy_usd=row_checksums(self.values)[2])
        restored = replace(self, values=with_cost(self.values, self.cost_copy_usd))
        return restored if restored.has_sound_rest else self

    def problem(self) -> str | None:
        """Says what is wrong with the row, or returns None."""
        if self.error is not None:
            return f"it cannot be read: {self.error}"
        verdict_crc32, rest_crc32, cost_usd = row_checksums(self.values)
        if self.verdict_crc32 not in (None, verdict_crc32):
            return "its verdict does not match its checksum"
        if self.cost_copy_usd not in (None, cost_usd):
            return f"its cost is {cost_usd!r}, and the copy of it {self.cost_copy_usd!r}"
        if self.rest_crc32 not in (None, rest_crc32):
            return "its place, its cost or its rollout does not match its checksum"
        if not is_readable_verdict(self.values[-2]) or not is_json(self.values[-1]):
            return "it holds no readable JSON"
        return None


def scan(connection: sqlite3.Connection) -> Iterator[ScannedRow]:
    """Yields all verdicts, by id as far as the ids are sound, and a row with an error for each that is lost."""
    there = column_names(connection)
    checksums = ", ".join(name if name in there else "NULL" for name in CHECKSUM_COLUMNS.split(", "))
    select = f"SELECT rowid, {COLUMNS}, {checksums} FROM verdicts NOT INDEXED"
    connection.text_factory = bytes  # broken text is no UTF-8
    listed = _Listed.read(connection)
    yield from _Scan(connection, select, listed, listed.ids()).rows()


@dataclass(frozen=True, slots=True)
class _Index:
    """An index of the table, and the ids that it lists."""

    name: str
    columns: tuple[str, ...]
    ids: frozenset[int]
    is_complete: bool  # SQLite read the index to its end

    @classmethod
    def read(cls, connection: sqlite3.Connection, name: str, columns: tuple[str, ...]) -> _Index:
        """Reads an index; if it is broken, from both ends up to the broken page."""
        ids: set[int] = set()
        for direction in ("ASC", "DESC"):
            try:
                for (row_id,) in connection.execute(_index_query(name, columns, direction, "rowid")):
                    if row_id > 0:  # SQLite gives no other ids, so the entry is broken
                        ids.add(row_id)
            except sqlite3.DatabaseError:
                continue
            return cls(name, columns, frozenset(ids), is_complete=direction == "ASC")
        return cls(name, columns, frozenset(ids), is_complete=False)

    def entries(self, connection: sqlite3.Connection, ids: Set[int]) -> dict[int, tuple[Any, ...]]:
        """Returns what the index says about the rows with these ids, as far as it can be read."""
        found: dict[int, tuple[Any, ...]] = {}
        for direction in ("ASC", "DESC"):
            query = _index_query(self.name, self.columns, direction, f"rowid, {', '.join(self.columns)}")
            with contextlib.suppress(sqlite3.DatabaseError):
                for row_id, *values in connection.execute(query):
                    if row_id in ids:
                        found[row_id] = tuple(values)
        return found

    def entry_elsewhere(self, row: ScannedRow, is_doubled: bool) -> tuple[Any, ...] | None:
        """Returns what the index says about a row under another id than it has; None if that is not known."""
        is_known = self.is_complete or self.columns == ("key",)  # many rows may have the same run and cost
        if not is_known or (row.id in self.ids and not is_doubled):
            return None
        named = dict(zip(COLUMNS.split(", "), row.values, strict=True))
        return tuple(named[column] for column in self.columns)


def _index_query(name: str, columns: Sequence[str], direction: str, selected: str) -> str:
    order = ", ".join(f"{column} {direction}" for column in columns)
    return f"SELECT {selected} FROM verdicts INDEXED BY {name} ORDER BY {order}"


@dataclass(frozen=True, slots=True)
class _Listed:
    """What the indexes list.

    A row must be in the table if every index that could be read to its end lists its id; if there is none, if any does.
    """

    indexes: tuple[_Index, ...]
    is_complete: bool  # an index could be read to its end

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> _Listed:
        by_key = _Index.read(connection, "verdicts_by_key", ("key",))
        by_run = _Index.read(connection, "verdicts_by_run", ("run", "cost_usd"))
        return cls((by_key, by_run), by_key.is_complete or by_run.is_complete)

    def ids(self) -> frozenset[int]:
        """Returns all ids that an index lists which could be read to its end; if there is none, that any lists."""
        return frozenset[int]().union(*(one.ids for one in self.indexes if one.is_complete or not self.is_complete))

    def must_be_there(self) -> frozenset[int]:
        complete = [index.ids for index in self.indexes if index.is_complete]
        return complete[0].intersection(*complete) if complete else self.ids()


@dataclass(frozen=True, slots=True)
class _Stray:
    """A row that an index may list under another id than it has, and what each such index says about it."""

    entries: tuple[tuple[Any, ...] | None, ...]
    is_doubled: bool  # another row has the same id


@dataclass(slots=True)
class _Scan:
    """One pass over the table. Call `rows` once.

    A row counts by itself if it is sound, or if at least its place and cost are. All else may be no row at all, because
    SQLite shows garbage in a broken page as rows: it counts only in place of an id that must be there.
    """

    connection: sqlite3.Connection
    select: str
    listed: _Listed
    ids: frozenset[int]  # that are listed
    seen: dict[int, int] = field(default_factory=dict)  # the hash of each row that was read, by its id
    doubled: set[int] = field(default_factory=set)  # the hashes of rows that have the same id
    counted: set[int] = field(default_factory=set)  # the ids of rows that count by themselves
    broken: dict[int, ScannedRow] = field(default_factory=dict)  # what else was found, by id
    strays: list[_Stray] = field(default_factory=list)  # of the counted rows

    def rows(self) -> Iterator[ScannedRow]:
        must_be_there = self.listed.must_be_there()
        ids = sorted(self.ids if self.listed.is_complete else self.ids.union(self._possible_ids()))
        before = -_MAX_ID
        for start in range(0, len(ids), _IDS_AT_ONCE):
            some = ids[start : start + _IDS_AT_ONCE]
            yield from sorted(self._after(before, some), key=lambda row: row.id)
            before = some[-1]
        yield from self._readable(" WHERE rowid > ? ORDER BY rowid", before)  # ids that no index lists
        if not must_be_there <= self.counted:
            # SQLite finds no row under a changed id, but comes across it when it reads all rows in turn.
            yield from self._readable(" ORDER BY rowid")
            yield from self._readable(" ORDER BY rowid DESC")
        yield from self._lost(must_be_there.union(self.broken.keys() & set(ids)) - self.counted)

    def _possible_ids(self) -> range:
        """Returns the ids that the table may have if no index lists them all. A changed id may be far too large."""
        (num_pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = self.connection.execute("PRAGMA page_size").fetchone()
        most = num_pages * page_bytes // _MIN_ROW_BYTES
        try:
            (last_id,) = self.connection.execute("SELECT coalesce(max(rowid), 0) FROM verdicts NOT INDEXED").fetchone()
        except sqlite3.DatabaseError:
            last_id = most
        return range(1, min(most, max(last_id, 0, *self.ids)) + 1)

    def _after(self, before: int, ids: Sequence[int]) -> Iterator[ScannedRow]:
        """Reads the rows after `before` up to the last of `ids`; halves `ids` until only the broken ones are left."""
        try:
            found = self._fetch(" WHERE rowid > ? AND rowid <= ? ORDER BY rowid", before, ids[-1])
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
            found = self._fetch(" WHERE rowid = ?", row_id)
        except sqlite3.DatabaseError as error:
            self.broken.setdefault(row_id, ScannedRow(row_id, error=str(error)))
            return
        yield from self._new(found)

    def _readable(self, where: str, *values: int) -> Iterator[ScannedRow]:
        """Yields the rows up to the first that cannot be read, without those that were returned before."""
        with contextlib.suppress(sqlite3.DatabaseError):
            for row in self.connection.execute(self.select + where, values):
                yield from self._new([row])

    def _fetch(self, where: str, *values: int) -> list[tuple[Any, ...]]:
        return self.connection.execute(self.select + where, values).fetchall()

    def _new(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[ScannedRow]:
        """Yields the rows that count by themselves, each once: a broken page may lead SQLite to the same row twice."""
        for row in rows:
            row_id, *values, verdict_crc32, rest_crc32, cost_copy_usd = row
            if self.seen.get(row_id) == hash(row) or hash(row) in self.doubled:
                continue
            if row_id in self.seen:
                self.doubled |= {self.seen[row_id], hash(row)}
            self.seen[row_id] = hash(row)
            is_doubled = row_id in self.counted
            is_moved = is_doubled or (self.listed.is_complete and row_id not in self.ids)
            scanned = ScannedRow(row_id, tuple(values), verdict_crc32, rest_crc32, cost_copy_usd, is_moved=is_moved)
            if scanned.problem() is not None and not scanned.with_cost_restored().has_sound_rest:
                self.broken[row_id] = scanned
                continue
            self.counted.add(row_id)
            if is_moved or not self.listed.is_complete:
                entries = tuple(index.entry_elsewhere(scanned, is_doubled) for index in self.listed.indexes)
                if any(entry is not None for entry in entries):
                    self.strays.append(_Stray(entries, is_doubled))
            yield scanned

    def _lost(self, missing: Set[int]) -> Iterator[ScannedRow]:
        """Yields the missing ids, but not those whose row was returned under another id."""
        lost, strays = set(missing), self.strays
        for number, index in enumerate(self.listed.indexes):
            if not lost or not strays:
                break
            by_entry: dict[tuple[Any, ...], list[int]] = {}
            for row_id, listed in index.entries(self.connection, lost).items():
                by_entry.setdefault(listed, []).append(row_id)
            unmatched: list[_Stray] = []
            for stray in strays:
                entry = stray.entries[number]
                if entry is not None and (ids := by_entry.get(entry)):
                    lost.discard(ids.pop())
                else:
                    unmatched.append(stray)
            strays = unmatched
        num_doubled = sum(stray.is_doubled for stray in strays)  # each of them had another id, which is not known
        for row_id in sorted(lost)[num_doubled:]:
            yield self.broken.get(row_id) or ScannedRow(row_id, error=PLACE_LOST)
