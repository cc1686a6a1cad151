"""Keeps on disk what was sent in batches and has not reached the journal, so that a killed run finds it again.

Always true: a request is in the store before its batch is sent, and its answer is in the store before the judge gets
it. A request that the service did not process is removed, so that it may be sent again. Requests of other scopes are
left alone: a scope is one judge in one run. No secret value that this process knows is in the file, and a row
that changed on disk is not believed: it is as if it had never been there, and its request is asked again. All methods
may be called from any thread.

The file stands beside the journal. It holds answers of the service only until the agent closes with every verdict in
the journal. After a kill or a failed journal the answers stay, and are removed when a later session has used them, or
after 30 days, because then the services have removed theirs too.

Rows have checksums as in the journal (`row_checksums`). They are NULL in rows of earlier versions, which are believed.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from rewardflow.errors import JournalError
from rewardflow.observe.redact import hide_in_record, hide_secrets
from rewardflow.reward.journal.row_checksums import Value, values_checksum
from rewardflow.services.batches.batch_api import Outcome

logger = logging.getLogger(__name__)

_TABLES = (
    "CREATE TABLE IF NOT EXISTS batches (key TEXT PRIMARY KEY, scope TEXT NOT NULL, endpoint TEXT NOT NULL, id TEXT, "
    "made_s REAL NOT NULL, is_over INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS requests (key TEXT PRIMARY KEY, batch TEXT NOT NULL, place TEXT NOT NULL, "
    "reserved_usd REAL NOT NULL, answer BLOB) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS requests_of_batch ON requests (batch)",
)
_CHECKSUMS = (("batches", "crc32"), ("requests", "crc32"), ("requests", "answer_crc32"))
_KEPT_S = 30 * 86_400.0
_BUSY_S = 30.0


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request by its key. `place` names the call that made it, for which `reserved_usd` was set aside."""

    key: str
    place: str
    reserved_usd: float


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of an earlier session. `id` is None if it is not known whether it was created.

    `endpoint` is its address without a password.
    """

    key: str
    endpoint: str
    id: str | None
    made_s: float
    is_over: bool
    requests: tuple[StoredRequest, ...]


class BatchStore:
    """The batches of one scope, in a file, or in memory if there is none."""

    def __init__(self, path: Path | None, scope: str) -> None:
        self.path = path
        self._scope = scope
        self._lock = threading.Lock()
        try:
            self._connection = self._open()
        except (OSError, sqlite3.Error) as error:
            raise JournalError(
                f"the file of batches must be a database that can be written, got {path}: {error}"
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # private from the start
        connection = sqlite3.connect(
            ":memory:" if self.path is None else self.path.absolute(), timeout=_BUSY_S, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = FULL")
        with connection:
            for statement in _TABLES:
                connection.execute(statement)
            for table, column in _CHECKSUMS:  # a file of an earlier version has none
                if column not in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} INTEGER")
            old = "SELECT key FROM batches WHERE made_s < ?"
            connection.execute(f"DELETE FROM requests WHERE batch IN ({old})", (time.time() - _KEPT_S,))
            connection.execute("DELETE FROM batches WHERE made_s < ?", (time.time() - _KEPT_S,))
        return connection

    def load(self) -> list[StoredBatch]:
        """Returns what earlier sessions left, without what changed on disk since."""
        num_broken = 0
        found = []
        with self._lock:
            batches = self._connection.execute(
                "SELECT crc32, key, scope, endpoint, id, made_s, is_over FROM batches WHERE scope = ?", (self._scope,)
            ).fetchall()
            for checksum, *values in batches:
                key, _, endpoint, batch_id, made_s, is_over = values
                rows = self._connection.execute(
                    "SELECT crc32, key, batch, place, reserved_usd FROM requests WHERE batch = ?", (key,)
                ).fetchall()
                whole = [row for row in rows if _is_whole(row[0], row[1:])] if _is_whole(checksum, values) else []
                num_broken += len(rows) - len(whole)
                if whole:
                    requests = tuple(StoredRequest(one, place, usd) for _, one, _, place, usd in whole)
                    found.append(StoredBatch(key, endpoint, batch_id, made_s, bool(is_over), requests))
        if num_broken:
            self._tell_broken(num_broken)
        return found

    def begin(self, key: str, endpoint: str, made_s: float, requests: Iterable[StoredRequest]) -> None:
        """Notes a batch that is about to be sent; again, if it was not created and is sent once more."""
        rows = [(one.key, key, one.place, one.reserved_usd) for one in requests]
        with self._lock, self._connection:
            self._connection.execute(
                "INSERT OR REPLACE INTO batches (key, scope, endpoint, id, made_s) VALUES (?, ?, ?, NULL, ?)",
                (key, self._scope, hide_secrets(endpoint), made_s),
            )
            self._sum_up(key)
            self._connection.executemany(
                "INSERT OR REPLACE INTO requests (key, batch, place, reserved_usd, crc32) VALUES (?, ?, ?, ?, ?)",
                [(*row, values_checksum(row)) for row in rows],
            )

    def created(self, key: str, batch_id: str) -> None:
        with self._lock, self._connection:
            self._connection.execute("UPDATE batches SET id = ? WHERE key = ?", (batch_id, key))
            self._sum_up(key)

    def collect(self, outcomes: Sequence[tuple[str, Outcome]]) -> None:
        """Stores answers, and removes requests that have none."""
        answers = [(orjson.dumps(hide_in_record(one)), key) for key, one in outcomes if not isinstance(one, Exception)]
        rows = [(answer, values_checksum((key, answer)), key) for answer, key in answers]
        failed = [(key,) for key, one in outcomes if isinstance(one, Exception)]
        with self._lock, self._connection:
            self._connection.executemany("UPDATE requests SET answer = ?, answer_crc32 = ? WHERE key = ?", rows)
            self._connection.executemany("DELETE FROM requests WHERE key = ?", failed)

    def end(self, key: str) -> None:
        """Notes that everything that the batch gave is in the store."""
        with self._lock, self._connection:
            self._connection.execute("DELETE FROM requests WHERE batch = ? AND answer IS NULL", (key,))
            self._connection.execute("UPDATE batches SET is_over = 1 WHERE key = ?", (key,))
            self._sum_up(key)
            self._drop_empty()

    def forget_batch(self, key: str) -> None:
        """Removes a batch that was never created."""
        with self._lock, self._connection:
            self._connection.execute("DELETE FROM requests WHERE batch = ?", (key,))
            self._connection.execute("DELETE FROM batches WHERE key = ?", (key,))

    def answer(self, key: str) -> Outcome | None:
        """Returns the answer to a request; None if there is none, or if it changed on disk."""
        with self._lock:
            row = self._connection.execute("SELECT answer_crc32, answer FROM requests WHERE key = ?", (key,)).fetchone()
        if row is None or row[1] is None:
            return None
        checksum, answer = row
        try:
            found = orjson.loads(answer) if _is_whole(checksum, (key, answer)) else None
        except ValueError:
            found = None
        if not isinstance(found, Mapping):
            self._tell_broken(1)
            return None
        return found

    def forget(self, keys: Iterable[str]) -> None:
        """Removes answers that are in the journal now."""
        with self._lock, self._connection:
            self._connection.executemany("DELETE FROM requests WHERE key = ?", [(key,) for key in keys])
            self._drop_empty()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _sum_up(self, key: str) -> None:
        """Gives the row of a batch its checksum."""
        row = self._connection.execute(
            "SELECT key, scope, endpoint, id, made_s, is_over FROM batches WHERE key = ?", (key,)
        ).fetchone()
        if row is not None:
            self._connection.execute("UPDATE batches SET crc32 = ? WHERE key = ?", (values_checksum(row), key))

    def _tell_broken(self, num_rows: int) -> None:
        logger.error("%s: %d requests changed on disk, and are asked again", self.path, num_rows)

    def _drop_empty(self) -> None:
        self._connection.execute(
            "DELETE FROM batches WHERE is_over = 1 AND NOT EXISTS (SELECT 1 FROM requests WHERE batch = batches.key)"
        )


def _is_whole(checksum: int | None, values: Sequence[Value]) -> bool:
    return checksum is None or checksum == values_checksum(values)
