"""Writes the journal: saves every paid verdict on disk before it is delivered.

Always true: the journal calls `saved(entry)` once for each entry, on the loop thread, after the commit that holds it;
an entry for which it was called survives `kill -9`. Only a failed commit (a full disk, a deleted file) breaks that
promise: the journal logs the error, calls `failed` once so that the agent stops sending, keeps the rows and tries them
again, and `aclose` raises if they still cannot be saved. A broken row costs that row: it is not found, and counted. The
event loop never waits for the disk, and a run has one open journal at a time.

One writer thread owns the connection. While one commit runs, it collects the entries of the next. `database` opens the
file, `verdict_rows` makes its rows, and `reader` reads it from outside a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from rewardflow import clock
from rewardflow.errors import InvalidInput, JournalError, JournalWriteFailed
from rewardflow.reward.journal.database import LOCK_TIMEOUT_S, close, open_for_writing, translated_errors
from rewardflow.reward.journal.files_in_place import FilesInPlace
from rewardflow.reward.journal.journal_lock import lock_run
from rewardflow.reward.journal.reader import JournalReader, JournalRow, vacuum
from rewardflow.reward.journal.reservations import (
    Reservation,
    create_reservations,
    read_reservations,
    write_reservations,
)
from rewardflow.reward.journal.row_checksums import TableRow
from rewardflow.reward.journal.verdict_rows import (
    FoundVerdicts,
    JournalEntry,
    Store,
    insert,
    look_up,
    max_rows_a_statement,
    row_of,
    spent_by_run_usd,
    spent_usd,
)
from rewardflow.types import Reward

__all__ = ["Journal", "JournalEntry", "JournalReader", "JournalRow", "JournalStatistics", "vacuum"]

logger = logging.getLogger(__name__)

MAX_ROWS_A_COMMIT: Final = 1000
MAX_KEYS_A_LOOKUP: Final = 200  # keeps the answer of one lookup small, because parsing it holds the GIL
MAX_PENDING: Final = 10_000
YIELD_GIL_EVERY_S: Final = 0.002
YIELD_GIL_FOR_S: Final = 0.00005


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    rows_written: int
    commits: int
    found: int
    pending: int  # submitted, not yet on disk
    lost: int  # never saved: more than MAX_PENDING rows could not be written, or the entry was broken
    failed_writes: int  # commits that failed
    broken_rows: int  # found, but changed on disk or unreadable; their calls are made again
    last_error: str | None


@dataclass(slots=True)
class _Find:
    keys: Sequence[bytes]
    failures: bool
    found: Callable[[Mapping[bytes, Reward]], None]
    rewards: Mapping[bytes, Reward] = field(default_factory=dict)

    def answer(self) -> None:
        self.found(self.rewards)


@dataclass(frozen=True, slots=True)
class _Write:
    entry: JournalEntry
    saved: Callable[[JournalEntry], None]

    def answer(self) -> None:
        self.saved(self.entry)


@dataclass(slots=True)
class _Reserve:
    rows: Sequence[Reservation]
    reserved: Callable[[bool], None]
    is_saved: bool = False

    def answer(self) -> None:
        self.reserved(self.is_saved)


@dataclass(frozen=True, slots=True)
class _Stop:
    stopped: asyncio.Future[None]

    def answer(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)


_Job = _Find | _Write | _Reserve | _Stop


class Journal:
    """The journal of one run, open for writing. Call all methods on the loop thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: str | None,
        store: Store = "full",
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        exclusive: bool | None = None,
    ) -> None:
        """Opens or creates the file; blocks for at most about `lock_timeout_s`.

        `exclusive` locks all other processes out, also readers; None does so on network file systems only.
        """
        if store not in get_args(Store):
            raise InvalidInput(f"store must be one of {', '.join(get_args(Store))}, got {store!r}")
        self.path = Path(path)
        self._store: Store = store
        self._run = "" if run is None else run  # for reservations: an agent of all runs has its own
        with contextlib.ExitStack() as undo:
            self._lock = undo.enter_context(lock_run(self.path, run))
            self._connection = open_for_writing(self.path, lock_timeout_s, exclusive=exclusive)
            undo.callback(self._connection.close)
            with translated_errors(self.path):  # a damaged file may fail only when its rows are read
                self._spent_usd = spent_usd(self._connection, run)
                self.spent_by_run_usd = spent_by_run_usd(self._connection) if run is None else {}
                create_reservations(self._connection)
                self.stored_money = read_reservations(self._connection, self._run, all_runs=run is None)
            undo.pop_all()
        self._files = FilesInPlace(self.path)
        self._max_rows = min(MAX_ROWS_A_COMMIT, max_rows_a_statement(self._connection))
        self._inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed: Callable[[JournalWriteFailed], None] | None = None
        self._closed = False
        self._num_submitted = 0
        self._unanswered = 0
        self._yield_timer: asyncio.TimerHandle | None = None
        # Once the writer thread runs, only it changes the attributes below.
        self._unsaved: list[TableRow] = []
        self._rows_written = self._commits = self._found = self._lost = self._failed_writes = self._broken_rows = 0
        self._errors_logged: set[str] = set()
        self._last_error: str | None = None
        self._cannot_save: str | None = None  # why the first commit failed for good, and the agent must stop sending
        self._is_gone = False

    def start(
        self, loop: asyncio.AbstractEventLoop, failed: Callable[[JournalWriteFailed], None] | None = None
    ) -> None:
        """Starts the writer thread, as a daemon, so that a run that never closes its journal can still exit.

        Calls `failed` once, on the loop thread, after the first commit that failed, and after its `saved` callbacks.
        """
        if self._loop is not None or self._closed:
            raise JournalError(f"a journal must be started once, before it is closed: {self.path}")
        self._loop = loop
        self._failed = failed
        threading.Thread(target=self._run_writer, args=(loop,), name="rewardflow-journal", daemon=True).start()

    def find(
        self, keys: Sequence[bytes], found: Callable[[Mapping[bytes, Reward]], None], *, failures: bool = True
    ) -> None:
        """Calls `found` with the newest reusable verdict of each key that has one; sees all earlier writes.

        `failures=False` leaves out failed verdicts. A lookup that fails is logged and finds nothing.
        """
        self._submit(_Find(keys, failures, found))

    def write(self, entry: JournalEntry, saved: Callable[[JournalEntry], None]) -> None:
        """Saves `entry` with the next commit, then calls `saved(entry)`."""
        self._submit(_Write(entry, saved))
        self._num_submitted += 1

    def reserve(self, rows: Sequence[Reservation], reserved: Callable[[bool], None]) -> None:
        """Writes reservations, after all earlier entries, then calls `reserved` with whether they are on disk."""
        self._submit(_Reserve(rows, reserved))

    @property
    def has_saved_all(self) -> bool:
        """Whether every entry for which `saved` was called is on disk; false after a commit that failed."""
        return not self._unsaved

    async def aclose(self, timeout_s: float = 10.0) -> None:
        """Writes all pending rows, merges the WAL into the file and stops; returns after all callbacks have run."""
        if self._closed:
            return
        if self._loop is None:
            self._closed = True
            self._connection.close()
            self._lock.release()
            return
        stopped = self._loop.create_future()
        self._submit(_Stop(stopped))
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s):
                await stopped
        except TimeoutError:
            raise JournalWriteFailed(
                f"the journal must be written within timeout_s={timeout_s}: {self._num_submitted - self._rows_written} "
                f"delivered verdicts are not yet in {self.path}"
            ) from None
        if self._num_submitted > self._rows_written:
            raise JournalWriteFailed(
                f"{self._num_submitted - self._rows_written} verdicts were delivered but could not be saved in "
                f"{self.path}: {self._last_error}"
            )
        if self._is_gone:
            raise JournalWriteFailed(
                f"{self._rows_written} verdicts were saved in a file that is gone: {self._last_error}"
            )

    def spent_usd(self) -> float:
        """Returns what the run had spent when the journal was opened; with `run=None`, what all runs had spent."""
        return self._spent_usd + self.stored_money.spent_usd

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            rows_written=self._rows_written,
            commits=self._commits,
            found=self._found,
            pending=self._num_submitted - self._rows_written - self._lost,
            lost=self._lost,
            failed_writes=self._failed_writes,
            broken_rows=self._broken_rows,
            last_error=self._last_error,
        )

    def _submit(self, job: _Job) -> None:
        if self._loop is None or self._closed:
            raise JournalError(f"the journal must be open and started to be used: {self.path}")
        clock.begin_hold(self._loop)
        self._inbox.put(job)
        self._unanswered += 1
        if self._yield_timer is None:
            self._yield_timer = self._loop.call_later(YIELD_GIL_EVERY_S, self._yield_gil, self._loop)

    def _yield_gil(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the writer thread the GIL every few milliseconds, while any job waits for an answer.

        Why: a saturated loop releases the GIL once per round, for the microsecond that its select(0) takes. That is too
        short for another thread to wake up, and restarts the 5 ms that the thread waits before it demands the GIL.
        Measured beside a loop whose rounds take 1 ms, on two cores: a commit of 64 rows took 1.7 s in the median and up
        to 5.9 s; with this pause it took 6 ms.

        Cost: a pause is longer than requested, 0.2 ms measured, so a loop that is never idle loses 5 to 10 % of its
        time while verdicts are being saved. A loop with idle time loses only that.
        """
        time.sleep(YIELD_GIL_FOR_S)
        self._yield_timer = loop.call_later(YIELD_GIL_EVERY_S, self._yield_gil, loop)

    def _deliver(self, loop: asyncio.AbstractEventLoop, jobs: Sequence[_Job]) -> None:
        self._unanswered -= len(jobs)
        if self._unanswered == 0 and self._yield_timer is not None:
            self._yield_timer.cancel()
            self._yield_timer = None
        for job in jobs:
            try:
                job.answer()
            except Exception as error:
                loop.call_exception_handler({"message": "a callback of the journal raised", "exception": error})
            finally:
                clock.end_hold(loop)
        if self._cannot_save is not None and self._failed is not None:
            failed, self._failed = self._failed, None
            failed(JournalWriteFailed(f"the journal {self.path} must be written, but {self._cannot_save}"))

    # The methods from here on run in the writer thread.

    def _run_writer(self, loop: asyncio.AbstractEventLoop) -> None:
        stopping = False
        while not stopping:
            jobs = self._take()
            stopping = isinstance(jobs[-1], _Stop)
            try:
                self._serve(jobs)
            except Exception as error:  # the callers must get their answers in any case
                self._log_error(error, "the journal's writer failed")
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits; rows are still written
                loop.call_soon_threadsafe(self._deliver, loop, jobs)

    def _take(self) -> list[_Job]:
        """Takes all waiting jobs, at most as many as fit one commit. More jobs queue while a commit runs."""
        jobs = [self._inbox.get()]
        while len(jobs) < self._max_rows and not self._inbox.empty():
            jobs.append(self._inbox.get_nowait())
        return jobs

    def _serve(self, jobs: Sequence[_Job]) -> None:
        """Writes in one commit before it looks up, so that a lookup sees every entry submitted before it."""
        try:
            self._save([job.entry for job in jobs if isinstance(job, _Write)])
            for job in jobs:
                if isinstance(job, _Reserve):
                    self._save_reservations(job)
            for failures in (True, False):
                self._look_up([job for job in jobs if isinstance(job, _Find) and job.failures is failures], failures)
        finally:
            if isinstance(jobs[-1], _Stop):
                self._stop()

    def _stop(self) -> None:
        try:
            self._save_rows(self._unsaved)
        finally:
            try:
                close(self._connection)
            finally:
                self._lock.release()

    def _save(self, entries: Sequence[JournalEntry]) -> None:
        rows = list(self._unsaved)
        for entry in entries:
            try:
                rows.append(row_of(entry, self._store))
            except Exception as error:  # one entry of impossible types must not stop the others from being saved
                self._lost += 1
                self._log_error(error, "an entry could not be written")
        if entries:
            self._save_rows(rows)

    def _save_reservations(self, job: _Reserve) -> None:
        try:
            self._require_files()
            write_reservations(self._connection, self._run, job.rows)
            self._files.remember()
            job.is_saved = True
        except (sqlite3.Error, JournalError) as error:
            self._failed_writes += 1
            self._log_error(error, "a reservation of money was NOT saved")
            if not _is_busy(error):
                self._cannot_save = self._cannot_save or str(error)

    def _save_rows(self, rows: list[TableRow]) -> None:
        """Commits rows in order; keeps a failed batch and all rows after it for the next time, up to MAX_PENDING."""
        num_saved = 0
        try:
            self._require_files()
            while num_saved < len(rows):
                batch = rows[num_saved : num_saved + self._max_rows]
                insert(self._connection, batch)
                num_saved += len(batch)
                self._rows_written += len(batch)
                self._commits += 1
            self._files.remember()
        except (sqlite3.Error, JournalError) as error:
            self._failed_writes += 1
            self._log_error(error, "verdicts are delivered but NOT saved; they are kept and tried again")
            if not _is_busy(error):  # a file that another program holds will be free again
                self._cannot_save = self._cannot_save or str(error)
        unsaved = rows[num_saved:]
        self._unsaved = unsaved[:MAX_PENDING]
        self._lost += len(unsaved) - len(self._unsaved)

    def _require_files(self) -> None:
        problem = self._files.problem()
        self._is_gone = problem is not None
        if problem is not None:
            raise JournalError(problem)

    def _look_up(self, finds: Sequence[_Find], failures: bool) -> None:
        keys = list(dict.fromkeys(key for find in finds for key in find.keys))
        known: dict[bytes, Reward] = {}
        for start in range(0, len(keys), MAX_KEYS_A_LOOKUP):
            self._look_up_some(keys[start : start + MAX_KEYS_A_LOOKUP], failures, known)
        for find in finds:
            find.rewards = {key: known[key] for key in find.keys if key in known}
            self._found += len(find.rewards)

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
            self._log_error(error, "a lookup failed; its calls are made again")
        known.update(found.rewards)
        self._broken_rows += found.num_broken
        if found.num_broken:
            self._log_error(
                JournalError(f"`rewardflow journal check {self.path}` tells which"),
                "saved verdicts are broken; their calls are made again",
            )

    def _log_error(self, error: Exception, consequence: str) -> None:
        message = f"{type(error).__name__}: {error}"
        self._last_error = message
        if message not in self._errors_logged:
            self._errors_logged.add(message)
            logger.error("journal %s: %s (%s)", self.path, consequence, message)


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
