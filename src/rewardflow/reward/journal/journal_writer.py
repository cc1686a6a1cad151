"""Does the work of a journal's writer thread: saves rows in commits of many, and looks verdicts up.

Always true: rows are written in the order in which they came; a failed commit keeps its rows for the next one; a broken
entry, row or page costs no other. Only one thread calls `serve`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rewardflow.errors import JournalError
from rewardflow.observe.process_lock import ProcessLock
from rewardflow.reward.journal.database import close, close_without_merging
from rewardflow.reward.journal.files_in_place import FilesInPlace
from rewardflow.reward.journal.journal_requests import Find, Request, Reserve, Stop, Write
from rewardflow.reward.journal.reservations import write_reservations
from rewardflow.reward.journal.row_checksums import TableRow
from rewardflow.reward.journal.verdict_rows import (
    FoundVerdicts,
    JournalEntry,
    Store,
    insert,
    look_up,
    max_rows_a_statement,
    row_of,
)
from rewardflow.types import Reward

logger = logging.getLogger(__name__)

MAX_ROWS_A_COMMIT: Final = 1000
MAX_KEYS_A_LOOKUP: Final = 200  # keeps the answer of one lookup small, because parsing it holds the GIL
MAX_PENDING: Final = 10_000


class JournalWriter:
    """Owns the connection of an open journal, and counts what happened to its rows."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, *, run: str, store: Store, lock: ProcessLock
    ) -> None:
        self.max_rows = min(MAX_ROWS_A_COMMIT, max_rows_a_statement(connection))
        self.unsaved: list[TableRow] = []
        self.rows_written = self.commits = self.found = self.lost = self.failed_writes = self.broken_rows = 0
        self.last_error: str | None = None
        self.cannot_save: str | None = None  # why the first commit failed for good, and the agent must stop sending
        self.is_gone = False  # the file was deleted or replaced
        self._connection = connection
        self._path = path
        self._run = run
        self._store: Store = store
        self._lock = lock
        self._files = FilesInPlace(path, connection)
        self._errors_logged: set[str] = set()

    def close(self) -> None:
        """Closes the file and gives up the run's lock."""
        try:
            if self._files.is_wal_lost:
                close_without_merging(self._connection, self._files.path)
            else:
                close(self._connection)
        finally:
            self._files.close()
            self._lock.release()

    def serve(self, requests: Sequence[Request]) -> None:
        """Writes in one commit before it looks up, so that a lookup sees every entry submitted before it."""
        try:
            self._save([request.entry for request in requests if isinstance(request, Write)])
            for request in requests:
                if isinstance(request, Reserve):
                    self._save_reservations(request)
            for failures in (True, False):
                finds = [find for find in requests if isinstance(find, Find) and find.failures is failures]
                self._look_up(finds, failures)
        finally:
            if isinstance(requests[-1], Stop):
                self._stop()

    def _stop(self) -> None:
        try:
            self._save_rows(self.unsaved)
        finally:
            self.close()

    def _save(self, entries: Sequence[JournalEntry]) -> None:
        rows = list(self.unsaved)
        for entry in entries:
            try:
                rows.append(row_of(entry, self._store))
            except Exception as error:  # one entry of impossible types must not stop the others from being saved
                self.lost += 1
                self.log_error(error, "an entry could not be written")
        if entries:
            self._save_rows(rows)

    def _save_reservations(self, request: Reserve) -> None:
        try:
            self._require_files()
            if request.of_run_cap is None:
                write_reservations(self._connection, self._run, request.rows)
            else:
                write_reservations(self._connection, request.of_run_cap, request.rows, of_run_cap=True)
            self._files.remember()
            request.is_saved = True
        except (sqlite3.Error, JournalError) as error:
            self.failed_writes += 1
            self.log_error(error, "a reservation of money was NOT saved")
            if not _is_busy(error):
                self.cannot_save = self.cannot_save or str(error)

    def _save_rows(self, rows: list[TableRow]) -> None:
        """Commits rows in order; keeps a failed batch and all rows after it for the next time, up to MAX_PENDING."""
        num_saved = 0
        try:
            self._require_files()
            while num_saved < len(rows):
                batch = rows[num_saved : num_saved + self.max_rows]
                insert(self._connection, batch)
                num_saved += len(batch)
                self.rows_written += len(batch)
                self.commits += 1
            self._files.remember()
        except (sqlite3.Error, JournalError) as error:
            self.failed_writes += 1
            self.log_error(error, "verdicts are delivered but NOT saved; they are kept and tried again")
            if not _is_busy(error):  # a file that another program holds will be free again
                self.cannot_save = self.cannot_save or str(error)
        unsaved = rows[num_saved:]
        self.unsaved = unsaved[:MAX_PENDING]
        self.lost += len(unsaved) - len(self.unsaved)

    def _require_files(self) -> None:
        problem = self._files.problem()
        self.is_gone = problem is not None
        if problem is not None:
            raise JournalError(problem)

    def _look_up(self, finds: Sequence[Find], failures: bool) -> None:
        keys = list(dict.fromkeys(key for find in finds for key in find.keys))
        known: dict[bytes, Reward] = {}
        for start in range(0, len(keys), MAX_KEYS_A_LOOKUP):
            self._look_up_some(keys[start : start + MAX_KEYS_A_LOOKUP], failures, known)
        for find in finds:
            find.rewards = {key: known[key] for key in find.keys if key in known}
            self.found += len(find.rewards)

    def _look_up_some(self, keys: Sequence[bytes], failures: bool, known: dict[bytes, Reward]) -> None:
        """Adds what is found to `known`. Splits a lookup that fails, so that a broken page costs only its own rows."""
        try:
            found = look_up(self._connection, keys, failures=failures)
        except (sqlite3.Error, ValueError) as error:
            if len(keys) > 1 and not _is_busy(error):
                self._look_up_some(keys[: len(keys) // 2], failures, known)
                self._look_up_some(keys[len(keys) // 2 :], failures, known)
                return
            found = FoundVerdicts({}, len(keys))
            self.log_error(error, "a lookup failed; its calls are made again")
        known.update(found.rewards)
        self.broken_rows += found.num_broken
        if found.num_broken:
            self.log_error(
                JournalError(f"`rewardflow journal check {self._path}` tells which"),
                "saved verdicts are broken; their calls are made again",
            )

    def log_error(self, error: Exception, consequence: str) -> None:
        message = f"{type(error).__name__}: {error}"
        self.last_error = message
        if message not in self._errors_logged:
            self._errors_logged.add(message)
            logger.error("journal %s: %s (%s)", self._path, consequence, message)


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
