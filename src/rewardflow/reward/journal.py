"""The journal: every verdict that was paid for, on disk before it is delivered.

Always true: `saved(entry)` is called once for each entry, on the loop thread, after the commit that holds it;
whatever it was called for survives `kill -9`. Only a commit that failed (a full disk) breaks that promise: it is
logged, its rows are kept and tried again, and `aclose` raises if that was in vain. The event loop never waits for
the disk.

One SQLite file in WAL mode with `synchronous=FULL`, one thread that owns the connection. The sqlite3 module lets go
of the GIL at every step of a statement and may wait 5 ms to get it back from a busy loop, so everything here is one
statement with one step for many rows: a commit is one INSERT, a lookup returns one text. A row has its numbers in
columns, to be queried, and its texts in two JSON documents, `verdict` and `rollout`. What JSON cannot say comes back
as JSON says it: tuples as lists, odd objects as their repr, NaN as null.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import queue
import re
import sqlite3
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

import orjson

from rewardflow import clock
from rewardflow.errors import (
    InvalidInput,
    JournalError,
    JournalLocked,
    JournalWriteFailed,
    NewerJournal,
    NotAJournal,
)
from rewardflow.types import EMPTY, FailureKind, Reward, Rollout

log = logging.getLogger(__name__)

Store = Literal["full", "hash"]

APPLICATION_ID: Final = 0x52464A31  # "RFJ1"
SCHEMA_VERSION: Final = 1
LOCK_TIMEOUT_S: Final = 5.0
MAX_ROWS_A_COMMIT: Final = 1000
MAX_KEYS_A_LOOKUP: Final = 200  # keeps one lookup's answer small: parsing it holds the GIL
MAX_PENDING: Final = 10_000
MIN_DATABASE_BYTES: Final = 512
MAKE_WAY_EVERY_S: Final = 0.002
MAKE_WAY_FOR_S: Final = 0.00005
ROWS_A_PAGE: Final = 500
REPLAYED_KINDS: Final[tuple[FailureKind, ...]] = ("timeout", "rate_limited", "service", "unparsable", "user_error")
TEXT_NOT_STORED: Final = "(text not stored)"

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
    rollout TEXT NOT NULL
);
CREATE INDEX verdicts_by_key ON verdicts (key);
CREATE INDEX verdicts_by_run ON verdicts (run, cost_usd);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
_COLUMNS: Final = (
    "key, at_s, run, step, group_id, sample_index, reward, identity, value, kind, attempts, latency_s, cost_usd, "
    "tokens, verdict, rollout"
)
_NUM_COLUMNS: Final = _COLUMNS.count(",") + 1
_SCORED: Final = "value IS NOT NULL"
_REPLAYED: Final = f"(value IS NOT NULL OR kind IN ({', '.join(repr(kind) for kind in REPLAYED_KINDS)}))"

Row = tuple[bytes | str | float | int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One verdict with everything that is written down about it. `key` is what it will be found by."""

    key: bytes
    run: str
    reward: str
    identity: str
    rollout: Rollout
    verdict: Reward
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    rows_written: int
    commits: int
    found: int
    pending: int  # handed over, not yet on disk
    lost: int  # given up: more than MAX_PENDING could not be written, or the entry was broken
    failed_writes: int  # commits that failed
    last_error: str | None


# ---- the writer ---------------------------------------------------------------------------------------------------


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
    entry: Entry
    saved: Callable[[Entry], None]

    def answer(self) -> None:
        self.saved(self.entry)


@dataclass(frozen=True, slots=True)
class _Stop:
    stopped: asyncio.Future[None]

    def answer(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)


_Job = _Find | _Write | _Stop


class Journal:
    """The journal of one run, open for writing. All methods belong to the loop thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: str,
        store: Store = "full",
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        exclusive: bool | None = None,
    ) -> None:
        """Open or create the file; blocks for at most about `lock_timeout_s`.

        `exclusive` locks all others out, readers included; None does so on network file systems only.
        """
        if store not in get_args(Store):
            raise InvalidInput(f"store must be one of {', '.join(get_args(Store))}, got {store!r}")
        self.path = Path(path)
        self._store: Store = store
        self._connection = _open_for_writing(self.path, lock_timeout_s, exclusive)
        self._max_rows = _max_rows_a_statement(self._connection)
        self._spent_usd = _spent_usd(self._connection, run)
        self._inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._handed_over = 0
        self._unanswered = 0
        self._make_way_timer: asyncio.TimerHandle | None = None
        # Below: written by the writer thread alone once it runs.
        self._unsaved: list[Row] = []
        self._rows_written = self._commits = self._found = self._lost = self._failed_writes = 0
        self._errors: dict[str, None] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the writer thread; a daemon, so that a run that never closes its journal can still exit."""
        if self._loop is not None or self._closed:
            raise JournalError(f"a journal is started once, before it is closed: {self.path}")
        self._loop = loop
        threading.Thread(target=self._work, args=(loop,), name="rewardflow-journal", daemon=True).start()

    def find(
        self, keys: Sequence[bytes], found: Callable[[Mapping[bytes, Reward]], None], *, failures: bool = True
    ) -> None:
        """Call `found` with the newest reusable verdict of each key that has one; all earlier writes are seen.

        `failures=False` leaves failed verdicts out. A lookup that fails is logged and finds nothing.
        """
        self._hand_over(_Find(keys, failures, found))

    def write(self, entry: Entry, saved: Callable[[Entry], None]) -> None:
        """Save `entry` with the next commit, then call `saved(entry)`."""
        self._hand_over(_Write(entry, saved))
        self._handed_over += 1

    async def aclose(self, timeout_s: float = 10.0) -> None:
        """Write what is left, fold the WAL into the file and stop; all callbacks have run when this returns."""
        if self._closed:
            return
        if self._loop is None:
            self._closed = True
            self._connection.close()
            return
        stopped = self._loop.create_future()
        self._hand_over(_Stop(stopped))
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s):
                await stopped
        except TimeoutError:
            raise JournalWriteFailed(
                f"the journal must be written within timeout_s={timeout_s}: {self._handed_over - self._rows_written} "
                f"delivered verdicts are not yet in {self.path}"
            ) from None
        if self._handed_over > self._rows_written:
            raise JournalWriteFailed(
                f"{self._handed_over - self._rows_written} verdicts were delivered but could not be saved in "
                f"{self.path}: {self._last_error()}"
            )

    def spent_usd(self) -> float:
        """What this run's verdicts had cost when the journal was opened."""
        return self._spent_usd

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            rows_written=self._rows_written,
            commits=self._commits,
            found=self._found,
            pending=self._handed_over - self._rows_written - self._lost,
            lost=self._lost,
            failed_writes=self._failed_writes,
            last_error=self._last_error(),
        )

    def _hand_over(self, job: _Job) -> None:
        if self._loop is None or self._closed:
            raise JournalError(f"the journal must be open and started to be used: {self.path}")
        clock.begin_hold(self._loop)
        self._inbox.put(job)
        self._unanswered += 1
        if self._make_way_timer is None:
            self._make_way_timer = self._loop.call_later(MAKE_WAY_EVERY_S, self._make_way, self._loop)

    def _make_way(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the writer have the GIL now and then.

        A saturated loop gives the GIL up once per round, for the microsecond that its select(0) takes. That is too
        short for another thread to wake up, and starts its 5 ms of patience again: measured, a commit then took 8 s.
        """
        time.sleep(MAKE_WAY_FOR_S)
        self._make_way_timer = loop.call_later(MAKE_WAY_EVERY_S, self._make_way, loop)

    def _hand_back(self, loop: asyncio.AbstractEventLoop, jobs: Sequence[_Job]) -> None:
        self._unanswered -= len(jobs)
        if self._unanswered == 0 and self._make_way_timer is not None:
            self._make_way_timer.cancel()
            self._make_way_timer = None
        for job in jobs:
            try:
                job.answer()
            except Exception as error:
                loop.call_exception_handler({"message": "a callback of the journal raised", "exception": error})
            finally:
                clock.end_hold(loop)

    # From here on: the writer thread.

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        stopping = False
        while not stopping:
            jobs = self._take()
            stopping = isinstance(jobs[-1], _Stop)
            try:
                self._serve(jobs)
            except Exception as error:  # whatever happens here, the callers get their answers
                self._note(error, "the journal's writer failed")
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits, but rows are still written
                loop.call_soon_threadsafe(self._hand_back, loop, jobs)

    def _take(self) -> list[_Job]:
        """Everything that waits, at most one commit's worth. While one commit runs, the next one gathers."""
        jobs = [self._inbox.get()]
        while len(jobs) < self._max_rows and not self._inbox.empty():
            jobs.append(self._inbox.get_nowait())
        return jobs

    def _serve(self, jobs: Sequence[_Job]) -> None:
        """Write before looking up, so that a lookup sees what was handed over before it, and it takes one commit."""
        self._save([job.entry for job in jobs if isinstance(job, _Write)])
        for failures in (True, False):
            self._look_up([job for job in jobs if isinstance(job, _Find) and job.failures is failures], failures)
        if isinstance(jobs[-1], _Stop):
            self._save_rows(self._unsaved)
            _close(self._connection)

    def _save(self, entries: Sequence[Entry]) -> None:
        rows = list(self._unsaved)
        for entry in entries:
            try:
                rows.append(_row(entry, self._store))
            except Exception as error:  # one entry of impossible types must not cost the others their commit
                self._lost += 1
                self._note(error, "an entry could not be written")
        if entries:
            self._save_rows(rows)

    def _save_rows(self, rows: list[Row]) -> None:
        """Commit in order; what fails, and all after it, is kept for the next time, up to a bound."""
        num_saved = 0
        try:
            while num_saved < len(rows):
                batch = rows[num_saved : num_saved + self._max_rows]
                # One statement is one transaction: it is either all on disk after this line or not there at all.
                self._connection.execute(_insert(len(batch)), [value for row in batch for value in row])
                num_saved += len(batch)
                self._rows_written += len(batch)
                self._commits += 1
        except sqlite3.Error as error:
            self._failed_writes += 1
            self._note(error, "verdicts are delivered but NOT saved; they are kept and tried again")
        unsaved = rows[num_saved:]
        self._unsaved = unsaved[:MAX_PENDING]
        self._lost += len(unsaved) - len(self._unsaved)

    def _look_up(self, finds: Sequence[_Find], failures: bool) -> None:
        keys = list(dict.fromkeys(key for find in finds for key in find.keys))
        known: dict[bytes, Reward] = {}
        try:
            for start in range(0, len(keys), MAX_KEYS_A_LOOKUP):
                known.update(_lookup(self._connection, keys[start : start + MAX_KEYS_A_LOOKUP], failures))
        except (sqlite3.Error, ValueError) as error:
            self._note(error, "a lookup failed; its verdicts are asked for again")
        for find in finds:
            find.rewards = {key: known[key] for key in find.keys if key in known}
            self._found += len(find.rewards)

    def _note(self, error: Exception, consequence: str) -> None:
        message = f"{type(error).__name__}: {error}"
        if message not in self._errors:
            log.error("journal %s: %s (%s)", self.path, consequence, message)
        self._errors.pop(message, None)
        self._errors[message] = None  # the newest stands last

    def _last_error(self) -> str | None:
        return next(reversed(self._errors), None)


# ---- the file -----------------------------------------------------------------------------------------------------

_NETWORK_FILE_SYSTEMS: Final = re.compile(
    r"(nfs|cifs|smb|lustre|gpfs|ceph|beegfs|fuse\.|9p|afs|glusterfs|orangefs|pvfs|panfs|wekafs|ocfs|gfs|virtiofs|ncp)"
)


def network_file_system(path: Path, mountinfo: str) -> str | None:
    """The kind of network file system `path` lies on, or None; `mountinfo` is the text of /proc/self/mountinfo."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) > 4 and right:
            mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            if path.is_relative_to(mount) and len(mount) >= len(best):
                best, kind = mount, right.split()[0]
    return kind if _NETWORK_FILE_SYSTEMS.match(kind) else None


def _is_on_network(path: Path) -> bool:
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return False
    return network_file_system(path.resolve(), mountinfo) is not None


def _open_for_writing(path: Path, lock_timeout_s: float, exclusive: bool | None) -> sqlite3.Connection:
    _create_private(path)
    try:
        connection = sqlite3.connect(
            path,
            timeout=lock_timeout_s,
            isolation_level=None,
            check_same_thread=False,  # opened by the caller, then owned by the writer thread
            cached_statements=8,  # a statement for a thousand rows takes about a megabyte
        )
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    try:
        if _is_on_network(path) if exclusive is None else exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _check(connection, path)
        _set_durable(connection, path)
        _create_schema(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise _explained(path, error) from error
        raise
    return connection


def _create_private(path: Path) -> None:
    """Create the file before SQLite does, which would let others read it.

    An existing file is left alone: opening and closing it here would drop this process's locks on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise JournalError(f"the journal must be a file, got the directory {path}") from None
        if (
            path.exists() and 0 < path.stat().st_size < MIN_DATABASE_BYTES
        ):  # SQLite takes it for empty and overwrites it
            raise NotAJournal(f"the journal must be a file that rewardflow made, got something else: {path}") from None
    except OSError as error:
        raise JournalError(f"cannot create the journal {path}: {error.strerror}") from error


def _check(connection: sqlite3.Connection, path: Path) -> bool:
    """True for a journal, False for an empty file; anything else is refused, untouched."""
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
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # pages; the default of 1000 folds the WAL at every commit
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        log.warning("journal %s: this file system allows no WAL, so commits are safe but slower (mode %s)", path, mode)


def _create_schema(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two runs may create the same journal at the same time
    if not _check(connection, path):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
    connection.execute("COMMIT")


def _explained(path: Path, error: sqlite3.Error) -> JournalError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest a detail of it
    if code == sqlite3.SQLITE_NOTADB:
        return NotAJournal(f"the journal must be a file that rewardflow made, got something else: {path}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return JournalLocked(f"the journal is in use by another run or command: {path} ({error})")
    return JournalError(f"cannot use the journal {path}: {error}")


def _max_rows_a_statement(connection: sqlite3.Connection) -> int:
    return min(MAX_ROWS_A_COMMIT, connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // _NUM_COLUMNS)


def _spent_usd(connection: sqlite3.Connection, run: str) -> float:
    (spent_usd,) = connection.execute("SELECT total(cost_usd) FROM verdicts WHERE run = ?", (_text(run),)).fetchone()
    return float(spent_usd)


def _insert(num_rows: int) -> str:
    row = f"({', '.join('?' * _NUM_COLUMNS)})"
    return f"INSERT INTO verdicts ({_COLUMNS}) VALUES {', '.join([row] * num_rows)}"


def _lookup(connection: sqlite3.Connection, keys: Sequence[bytes], failures: bool) -> dict[bytes, Reward]:
    """All verdicts come back as one text, made of documents that SQLite only glues: their floats stay exact."""
    newest = (
        f"SELECT max(id) FROM verdicts WHERE key IN ({', '.join('?' * len(keys))}) "
        f"AND {_REPLAYED if failures else _SCORED} GROUP BY key"
    )
    members = """group_concat('"' || hex(key) || '":' || verdict)"""
    (text,) = connection.execute(f"SELECT {members} FROM verdicts WHERE id IN ({newest})", keys).fetchone()
    documents = orjson.loads("{" + text + "}") if text else {}
    return {bytes.fromhex(key): _reward(document) for key, document in documents.items()}


def _close(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):  # a reader may be in the way; the next opening folds the WAL in
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


# ---- rows ---------------------------------------------------------------------------------------------------------

_VERDICT_TEXTS: Final = ("error", "query", "explanation", "extras")
_ROLLOUT_TEXTS: Final = ("prompt", "messages", "response", "ground_truth", "data_source", "extra_info")
_JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_MAX_DEPTH: Final = 64


def _row(entry: Entry, store: Store) -> Row:
    """In the order of `_COLUMNS`."""
    rollout, reward = entry.rollout, entry.verdict
    verdict, inputs = _verdict_document(reward), _rollout_document(rollout)
    if store == "hash":
        verdict, inputs = _without(verdict, _VERDICT_TEXTS), _without(inputs, _ROLLOUT_TEXTS)
        verdict["error"] = None if reward.error is None else TEXT_NOT_STORED
    return (
        bytes(entry.key),
        float(entry.at_s),
        _text(entry.run),
        _int64(rollout.step),
        _text(rollout.group_id),
        _int64(rollout.index),
        _text(entry.reward),
        _text(entry.identity),
        verdict["value"],
        reward.kind,
        verdict["attempts"],
        verdict["latency_s"],
        float(reward.cost_usd),
        _int64(reward.tokens),
        _json(verdict),
        _json(inputs),
    )


def _verdict_document(reward: Reward) -> dict[str, Any]:
    return {
        "value": None if reward.value is None else float(reward.value),
        "kind": reward.kind,
        "error": reward.error,
        "imputed": reward.imputed,
        "components": {name: None if part is None else float(part) for name, part in reward.components.items()},
        "extras": reward.extras,
        "query": reward.query,
        "explanation": reward.explanation,
        "attempts": _int64(reward.attempts),
        "latency_s": float(reward.latency_s),
    }


def _rollout_document(rollout: Rollout) -> dict[str, Any]:
    return {
        "group_size": rollout.group_size,
        "policy_version": rollout.policy_version,
        "prompt": rollout.prompt,
        "messages": rollout.messages,
        "response": rollout.response,
        "ground_truth": rollout.ground_truth,
        "data_source": rollout.data_source,
        "extra_info": rollout.extra_info,
    }


def _reward(document: Mapping[str, Any]) -> Reward:
    """A verdict as it is given out again: paid for already, hence at no cost."""
    return Reward(
        value=document["value"],
        kind=document["kind"],
        error=document["error"],
        imputed=document["imputed"],
        components=document["components"],
        extras=document.get("extras") or EMPTY,
        query=document.get("query"),
        explanation=document.get("explanation"),
        attempts=document["attempts"],
        latency_s=document["latency_s"],
        cached=True,
    )


def _without(document: Mapping[str, Any], private: Sequence[str]) -> dict[str, Any]:
    """The document with digests in place of its private texts: equal texts can still be told, nothing can be read."""
    kept = {name: value for name, value in document.items() if name not in private}
    digests = {name: _digest(document[name]) for name in private if document[name] is not None}
    return {**kept, "digests": digests}


def _digest(value: object) -> str:
    text = _text(value) if isinstance(value, str) else _json(value)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise InvalidInput(f"a number in the journal must fit 64 bits, got {value}")
    return int(value)


def _text(value: object) -> str:
    """Policies emit halves of surrogate pairs, which no encoding takes."""
    text = value if isinstance(value, str) else _printed(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _json(value: object) -> str:
    try:
        return orjson.dumps(value, default=_known, option=_JSON_OPTIONS).decode()
    except (TypeError, ValueError):  # broken unicode, numbers beyond 64 bits, cycles, odd keys
        return orjson.dumps(_plain(value, ())).decode()


def _known(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    return _printed(value)


def _plain(value: object, outer: tuple[int, ...]) -> object:
    """The slow, careful way: `value` rebuilt from what JSON surely takes."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping | list | tuple | AbstractSet):
        if id(value) in outer or len(outer) >= _MAX_DEPTH:
            return "(circular or nested too deeply)"
        within = (*outer, id(value))
        if isinstance(value, Mapping):
            return {_text(key): _plain(item, within) for key, item in value.items()}
        return [_plain(item, within) for item in value]
    try:
        return orjson.Fragment(orjson.dumps(value, option=_JSON_OPTIONS))
    except (TypeError, ValueError):
        return _text(_printed(value))


def _printed(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # a user's __repr__
        return f"<{type(value).__name__}>"


# ---- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRow:
    """One row as it was written. Its texts are in `rollout` and `verdict`; `digests` there stand in for hidden ones."""

    id: int
    key: bytes
    at_s: float
    run: str
    step: int
    group_id: str
    index: int
    reward: str
    identity: str
    value: float | None
    kind: FailureKind | None
    attempts: int
    latency_s: float
    cost_usd: float
    tokens: int
    verdict: Mapping[str, Any]
    rollout: Mapping[str, Any]


class JournalReader:
    """A journal opened read-only; works while a run writes to it, and never in that run's way."""

    def __init__(self, path: str | os.PathLike[str], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise JournalError(f"the journal must be a file, got {self.path}, which is none")
        uri = f"file:{urllib.parse.quote(os.fsencode(self.path.absolute()))}?mode=ro"
        with self._explaining():
            self._connection = sqlite3.connect(uri, uri=True, timeout=lock_timeout_s, isolation_level=None)
        try:
            with self._explaining():
                if not _check(self._connection, self.path):
                    raise NotAJournal(
                        f"the journal must be a file that rewardflow made, got an empty file: {self.path}"
                    )
        except JournalError:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def row(self, row_id: int) -> JournalRow | None:
        return next(iter(self._select("id = ?", (row_id,), "LIMIT 1")), None)

    def newest(self, limit: int, *, run: str | None = None, failed_only: bool = False) -> list[JournalRow]:
        """The last `limit` rows, oldest first."""
        where, values = _conditions(run, "value IS NULL" if failed_only else None)
        return self._select(where, (*values, limit), "ORDER BY id DESC LIMIT ?")[::-1]

    def rows(self, *, run: str | None = None, scored_only: bool = False) -> Iterator[JournalRow]:
        """All rows, oldest first. Read page by page, because a long read would keep the WAL of a live run growing."""
        where, values = _conditions(run, _SCORED if scored_only else None)
        last_id = 0
        while page := self._select(f"id > ? AND {where}", (last_id, *values, ROWS_A_PAGE), "ORDER BY id LIMIT ?"):
            yield from page
            last_id = page[-1].id

    def _select(self, where: str, values: Sequence[object], tail: str) -> list[JournalRow]:
        with self._explaining():
            rows = self._connection.execute(f"SELECT id, {_COLUMNS} FROM verdicts WHERE {where} {tail}", values)
            return [_journal_row(row) for row in rows]

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error


def _conditions(run: str | None, also: str | None) -> tuple[str, tuple[str, ...]]:
    conditions = ["run = ?"] if run is not None else []
    conditions += [also] if also is not None else []
    return " AND ".join(conditions) or "true", (_text(run),) if run is not None else ()


def _journal_row(row: Sequence[Any]) -> JournalRow:
    (row_id, key, at_s, run, step, group_id, index, reward, identity, value, kind, *numbers, verdict, rollout) = row
    attempts, latency_s, cost_usd, tokens = numbers
    return JournalRow(
        id=row_id,
        key=key,
        at_s=at_s,
        run=run,
        step=step,
        group_id=group_id,
        index=index,
        reward=reward,
        identity=identity,
        value=value,
        kind=kind,
        attempts=attempts,
        latency_s=latency_s,
        cost_usd=cost_usd,
        tokens=tokens,
        verdict=orjson.loads(verdict),
        rollout=orjson.loads(rollout),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    rows_deleted: int
    rows_left: int
    bytes_before: int
    bytes_after: int


def vacuum(
    path: str | os.PathLike[str],
    *,
    keep_runs: Sequence[str] = (),
    older_than_s: float | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Vacuumed:
    """Delete rows older than `older_than_s`, or all, but never those of `keep_runs`; then shrink the file.

    Without either, nothing is deleted. Takes the file for itself, so it is refused while a run has it open.
    """
    path = Path(path)
    if not path.is_file():
        raise JournalError(f"the journal must be a file, got {path}, which is none")
    if older_than_s is not None and not older_than_s >= 0:
        raise InvalidInput(f"older_than_s must be a number of at least 0, got {older_than_s!r}")
    bytes_before = _num_bytes(path)
    connection = _open_for_writing(path, lock_timeout_s, exclusive=True)
    try:
        rows_deleted = _delete(connection, path, [_text(run) for run in keep_runs], older_than_s)
        connection.execute("VACUUM")
        (rows_left,) = connection.execute("SELECT count(*) FROM verdicts").fetchone()
        _close(connection)
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    finally:
        connection.close()
    return Vacuumed(
        rows_deleted=rows_deleted, rows_left=rows_left, bytes_before=bytes_before, bytes_after=_num_bytes(path)
    )


def _delete(connection: sqlite3.Connection, path: Path, keep_runs: Sequence[str], older_than_s: float | None) -> int:
    if not keep_runs and older_than_s is None:
        return 0
    runs = [run for (run,) in connection.execute("SELECT DISTINCT run FROM verdicts ORDER BY run")]
    unknown = [run for run in keep_runs if run not in runs]
    if unknown:  # a slip of the pen would otherwise delete the very run that was meant
        raise InvalidInput(f"keep_runs must name runs of {path}, got {unknown}; its runs are {runs}")
    before_s = time.time() - older_than_s if older_than_s is not None else None
    return connection.execute(
        f"DELETE FROM verdicts WHERE run NOT IN ({', '.join('?' * len(keep_runs))}) AND (? IS NULL OR at_s < ?)",
        (*keep_runs, before_s, before_s),
    ).rowcount


def _num_bytes(path: Path) -> int:
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
