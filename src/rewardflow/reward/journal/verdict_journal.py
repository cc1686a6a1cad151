"""Writes the journal: saves every paid verdict on disk before it is delivered.

Always true: the journal calls `saved(entry)` once for each entry, on the loop thread, after the commit that holds it;
an entry for which it was called survives `kill -9`. Only a failed commit (a full disk, a deleted file) breaks that
promise: the journal logs the error, calls `failed` once so that the agent stops sending, keeps the rows and tries them
again, and `aclose` raises if they still cannot be saved. A broken row costs that row: it is not found, and counted. The
event loop never waits for the disk, and a run has one open journal at a time.

One writer thread owns the connection (`journal_writer`) and receives `journal_requests`. While one commit runs, it
collects the entries of the next. `database` opens the file, and `reader` reads it from outside a run.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from rewardflow import clock
from rewardflow.errors import DamagedWal, InvalidInput, JournalError, JournalWriteFailed
from rewardflow.observe.process_lock import ProcessLock
from rewardflow.reward.journal.database import LOCK_TIMEOUT_S, open_for_writing, translated_errors
from rewardflow.reward.journal.journal_lock import lock_run
from rewardflow.reward.journal.journal_requests import Find, Request, Reserve, Stop, Write
from rewardflow.reward.journal.journal_writer import JournalWriter
from rewardflow.reward.journal.reader import JournalReader, JournalRow, vacuum
from rewardflow.reward.journal.repair import repair_for_a_run
from rewardflow.reward.journal.reservations import Reservation, create_reservations, read_reservations
from rewardflow.reward.journal.saved_costs import read_saved_costs, spent_by_run_usd
from rewardflow.reward.journal.verdict_rows import JournalEntry, Store
from rewardflow.types import Reward

__all__ = ["Journal", "JournalEntry", "JournalReader", "JournalRow", "JournalStatistics", "vacuum"]

logger = logging.getLogger(__name__)

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


class Journal:
    """The journal of one run, open for writing. Call all methods on the loop thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: str | None,
        store: Store = "full",
        has_cap: bool = False,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        exclusive: bool | None = None,
    ) -> None:
        """Opens or creates the file; blocks for at most about `lock_timeout_s`.

        `has_cap`: money counts against a cap, so what was saved about it is proven first, which takes longer.
        `exclusive` locks all other processes out, also readers; None does so on network file systems only.
        """
        if store not in get_args(Store):
            raise InvalidInput(f"store must be one of {', '.join(get_args(Store))}, got {store!r}")
        self.path = Path(path)
        its_run = "" if run is None else run  # for reservations: an agent of all runs has its own
        with contextlib.ExitStack() as undo:
            lock, connection = _open(self.path, run, lock_timeout_s, exclusive=exclusive, repairs_wal=not has_cap)
            undo.callback(lock.release)
            undo.callback(connection.close)
            with translated_errors(self.path):  # a damaged file may fail only when its rows are read
                self._saved_costs = read_saved_costs(connection, run, proven=has_cap)
                self.spent_by_run_usd = spent_by_run_usd(connection, proven=has_cap) if run is None else {}
                create_reservations(connection)
                self.stored_money = read_reservations(connection, its_run, all_runs=run is None, checks_pages=has_cap)
            undo.pop_all()
        self._writer = JournalWriter(connection, self.path, run=its_run, store=store, lock=lock)
        self._saved_costs.warn_of_changes(self.path)
        self._inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed: Callable[[JournalWriteFailed], None] | None = None
        self._closed = False
        self._num_submitted = 0
        self._unanswered = 0
        self._yield_timer: asyncio.TimerHandle | None = None

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
        self._submit(Find(keys, failures, found))

    def write(self, entry: JournalEntry, saved: Callable[[JournalEntry], None]) -> None:
        """Saves `entry` with the next commit, then calls `saved(entry)`."""
        self._submit(Write(entry, saved))
        self._num_submitted += 1

    def reserve(self, rows: Sequence[Reservation], reserved: Callable[[bool], None]) -> None:
        """Writes reservations, after all earlier entries, then calls `reserved` with whether they are on disk."""
        self._submit(Reserve(rows, reserved))

    def reserve_of_run(self, run: str, rows: Sequence[Reservation], reserved: Callable[[bool], None]) -> None:
        """Does the same for the own cap of a run, at an agent that serves several."""
        self._submit(Reserve(rows, reserved, of_run_cap=run))

    @property
    def has_saved_all(self) -> bool:
        """Whether every entry for which `saved` was called is on disk; false after a commit that failed."""
        return not self._writer.unsaved

    async def aclose(self, timeout_s: float = 10.0) -> None:
        """Writes all pending rows, merges the WAL into the file and stops; returns after all callbacks have run."""
        if self._closed:
            return
        if self._loop is None:
            self._closed = True
            self._writer.close()
            return
        stopped = self._loop.create_future()
        self._submit(Stop(stopped))
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s):
                await stopped
        except TimeoutError:
            raise JournalWriteFailed(
                f"the journal must be written within timeout_s={timeout_s}: {self._num_unsaved} delivered verdicts are "
                f"not yet in {self.path}"
            ) from None
        writer = self._writer
        if self._num_unsaved > 0:
            raise JournalWriteFailed(
                f"{self._num_unsaved} verdicts were delivered but could not be saved in {self.path}: "
                f"{writer.last_error}"
            )
        if writer.is_gone:
            raise JournalWriteFailed(
                f"{writer.rows_written} verdicts were saved in a file that is gone: {writer.last_error}"
            )

    @property
    def _num_unsaved(self) -> int:
        return self._num_submitted - self._writer.rows_written

    def spent_usd(self) -> float:
        """Returns what the run had spent when the journal was opened; with `run=None`, what all runs had spent."""
        return self._saved_costs.usd + self.stored_money.spent_usd

    def require_known_money(self) -> None:
        """Raises if nobody knows what was spent, because then nobody knows what is left of a cap."""
        self.stored_money.require_sound(self.path)
        self._saved_costs.require_known(self.path)

    def statistics(self) -> JournalStatistics:
        writer = self._writer
        return JournalStatistics(
            rows_written=writer.rows_written,
            commits=writer.commits,
            found=writer.found,
            pending=self._num_unsaved - writer.lost,
            lost=writer.lost,
            failed_writes=writer.failed_writes,
            broken_rows=writer.broken_rows,
            last_error=writer.last_error,
        )

    def _submit(self, request: Request) -> None:
        if self._loop is None or self._closed:
            raise JournalError(f"the journal must be open and started to be used: {self.path}")
        clock.begin_hold(self._loop)
        self._inbox.put(request)
        self._unanswered += 1
        if self._yield_timer is None:
            self._yield_timer = self._loop.call_later(YIELD_GIL_EVERY_S, self._yield_gil, self._loop)

    def _yield_gil(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the writer thread the GIL every few milliseconds, while any request waits for an answer.

        Why: a saturated loop releases the GIL once per round, for the microsecond that its select(0) takes. That is too
        short for another thread to wake up, and restarts the 5 ms that the thread waits before it demands the GIL.
        Measured beside a loop whose rounds take 1 ms, on two cores: a commit of 64 rows took 1.7 s in the median and up
        to 5.9 s; with this pause it took 6 ms.

        Cost: a pause is longer than requested, 0.2 ms measured, so a loop that is never idle loses 5 to 10 % of its
        time while verdicts are being saved. A loop with idle time loses only that.
        """
        time.sleep(YIELD_GIL_FOR_S)
        self._yield_timer = loop.call_later(YIELD_GIL_EVERY_S, self._yield_gil, loop)

    def _deliver(self, loop: asyncio.AbstractEventLoop, requests: Sequence[Request]) -> None:
        self._unanswered -= len(requests)
        if self._unanswered == 0 and self._yield_timer is not None:
            self._yield_timer.cancel()
            self._yield_timer = None
        for request in requests:
            try:
                request.answer()
            except Exception as error:
                loop.call_exception_handler({"message": "a callback of the journal raised", "exception": error})
            finally:
                clock.end_hold(loop)
        if self._writer.cannot_save is not None and self._failed is not None:
            failed, self._failed = self._failed, None
            failed(JournalWriteFailed(f"the journal {self.path} must be written, but {self._writer.cannot_save}"))

    # The methods from here on run in the writer thread.

    def _run_writer(self, loop: asyncio.AbstractEventLoop) -> None:
        stopping = False
        while not stopping:
            requests = self._take()
            stopping = isinstance(requests[-1], Stop)
            try:
                self._writer.serve(requests)
            except Exception as error:  # the callers must get their answers in any case
                self._writer.log_error(error, "the journal's writer failed")
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits; rows are still written
                loop.call_soon_threadsafe(self._deliver, loop, requests)

    def _take(self) -> list[Request]:
        """Takes all waiting requests, at most as many as fit one commit. More of them queue while a commit runs."""
        requests = [self._inbox.get()]
        while len(requests) < self._writer.max_rows and not self._inbox.empty():
            requests.append(self._inbox.get_nowait())
        return requests


def _open(
    path: Path, run: str | None, lock_timeout_s: float, *, exclusive: bool | None, repairs_wal: bool
) -> tuple[ProcessLock, sqlite3.Connection]:
    """Locks the run and opens the file. Repairs one whose WAL SQLite would drop a part of, or raises `DamagedWal`."""
    try:
        return _lock_and_open(path, run, lock_timeout_s, exclusive=exclusive, takes_damaged_wal=False)
    except DamagedWal:
        if not repairs_wal:
            raise
        repair_for_a_run(path, lock_timeout_s=lock_timeout_s)  # which takes the locks of all runs
    return _lock_and_open(path, run, lock_timeout_s, exclusive=exclusive, takes_damaged_wal=True)


def _lock_and_open(
    path: Path, run: str | None, lock_timeout_s: float, *, exclusive: bool | None, takes_damaged_wal: bool
) -> tuple[ProcessLock, sqlite3.Connection]:
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(lock_run(path, run))
        connection = open_for_writing(path, lock_timeout_s, exclusive=exclusive, takes_damaged_wal=takes_damaged_wal)
        undo.pop_all()
    return lock, connection
