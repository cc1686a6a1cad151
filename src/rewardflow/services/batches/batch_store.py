"""Keeps on disk what was sent in batches and has not reached the journal, so that a killed run finds it again.

Always true: a request is in the store before its batch is sent, and its answer is in the store before the judge gets
it. A request that the service did not process is removed, so that it may be sent again. Requests of other scopes are
left alone: a scope is one judge in one run. All methods may be called from any thread.

The file stands beside the journal. It holds answers of the service only until the agent closes: by then the verdicts
are in the journal. After a kill the answers stay, and are removed when a later session has used them, or after 30 days,
because then the services have removed theirs too.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from rewardflow.errors import JournalError
from rewardflow.services.batches.batch_api import Outcome

_TABLES = (
    "CREATE TABLE IF NOT EXISTS batches (key TEXT PRIMARY KEY, scope TEXT NOT NULL, endpoint TEXT NOT NULL, id TEXT, "
    "made_s REAL NOT NULL, is_over INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS requests (key TEXT PRIMARY KEY, batch TEXT NOT NULL, place TEXT NOT NULL, "
    "reserved_usd REAL NOT NULL, answer BLOB) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS requests_of_batch ON requests (batch)",
)
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
    """A batch of an earlier session. `id` is None if it is not known whether it was created."""

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
            ":memory:" if self.path is None else self.path, timeout=_BUSY_S, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = FULL")
        with connection:
            for statement in _TABLES:
                connection.execute(statement)
            old = "SELECT key FROM batches WHERE made_s < ?"
            connection.execute(f"DELETE FROM requests WHERE batch IN ({old})", (time.time() - _KEPT_S,))
            connection.execute("DELETE FROM batches WHERE made_s < ?", (time.time() - _KEPT_S,))
        return connection

    def load(self) -> list[StoredBatch]:
        """Returns what earlier sessions left."""
        with self._lock:
            batches = self._connection.execute(
                "SELECT key, endpoint, id, made_s, is_over FROM batches WHERE scope = ?", (self._scope,)
            ).fetchall()
            found = []
            for key, endpoint, batch_id, made_s, is_over in batches:
                rows = self._connection.execute(
                    "SELECT key, place, reserved_usd FROM requests WHERE batch = ?", (key,)
                ).fetchall()
                requests = tuple(StoredRequest(*row) for row in rows)
                found.append(StoredBatch(key, endpoint, batch_id, made_s, bool(is_over), requests))
        return found

    def begin(self, key: str, endpoint: str, made_s: float, requests: Iterable[StoredRequest]) -> None:
        """Notes a batch that is about to be sent; again, if it was not created and is sent once more."""
        with self._lock, self._connection:
            self._connection.execute(
                "INSERT OR REPLACE INTO batches (key, scope, endpoint, id, made_s) VALUES (?, ?, ?, NULL, ?)",
                (key, self._scope, endpoint, made_s),
            )
            self._connection.executemany(
                "INSERT OR REPLACE INTO requests (key, batch, place, reserved_usd) VALUES (?, ?, ?, ?)",
                [(one.key, key, one.place, one.reserved_usd) for one in requests],
            )

    def created(self, key: str, batch_id: str) -> None:
        with self._lock, self._connection:
            self._connection.execute("UPDATE batches SET id = ? WHERE key = ?", (batch_id, key))

    def collect(self, outcomes: Sequence[tuple[str, Outcome]]) -> None:
        """Stores answers, and removes requests that have none."""
        answers = [(orjson.dumps(one), key) for key, one in outcomes if not isinstance(one, Exception)]
        failed = [(key,) for key, one in outcomes if isinstance(one, Exception)]
        with self._lock, self._connection:
            self._connection.executemany("UPDATE requests SET answer = ? WHERE key = ?", answers)
            self._connection.executemany("DELETE FROM requests WHERE key = ?", failed)

    def end(self, key: str) -> None:
        """Notes that everything that the batch gave is in the store."""
        with self._lock, self._connection:
            self._connection.execute("DELETE FROM requests WHERE batch = ? AND answer IS NULL", (key,))
            self._connection.execute("UPDATE batches SET is_over = 1 WHERE key = ?", (key,))
            self._drop_empty()

    def forget_batch(self, key: str) -> None:
        """Removes a batch that was never created."""
        with self._lock, self._connection:
            self._connection.execute("DELETE FROM requests WHERE batch = ?", (key,))
            self._connection.execute("DELETE FROM batches WHERE key = ?", (key,))

    def answer(self, key: str) -> Outcome | None:
        with self._lock:
            row = self._connection.execute("SELECT answer FROM requests WHERE key = ?", (key,)).fetchone()
        found: Outcome | None = None if row is None or row[0] is None else orjson.loads(row[0])
        return found

    def forget(self, keys: Iterable[str]) -> None:
        """Removes answers that are in the journal now."""
        with self._lock, self._connection:
            self._connection.executemany("DELETE FROM requests WHERE key = ?", [(key,) for key in keys])
            self._drop_empty()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _drop_empty(self) -> None:
        self._connection.execute(
            "DELETE FROM batches WHERE is_over = 1 AND NOT EXISTS (SELECT 1 FROM requests WHERE batch = batches.key)"
        )
