"""A run's directory: who the run is, what happened, one line per step, and where its journal lies.

    run.json        the run's name, start and schema version
    events.jsonl    one event a line, in order; a resumed run appends
    steps.jsonl     totals of a step, one line each; the last line of a step and source counts
    journal.db      paid verdicts, kept by the journal

Always true: files hold whole lines of valid JSON, except for a last line that a crash cut short, which readers skip
and the next writer repairs; what was emitted is written or counted as failed, never dropped in silence; emitting
neither waits for the disk nor raises.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rewardflow.errors import InvalidInput
from rewardflow.events import SCHEMA_VERSION, Event, from_json, plain, to_json

logger = logging.getLogger(__name__)

T = TypeVar("T")

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
STEPS_FILE = "steps.jsonl"
JOURNAL_FILE = "journal.db"
FLUSH_S = 0.2
BATCH_LINES = 1000

_DRAFT = f".{RUN_FILE}.tmp"  # run.json before it is whole; all that a crash in `create` leaves behind
_TAIL_BYTES = 65536

_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """An existing run's directory."""

    path: Path
    name: str
    started_at: float
    rewardflow_version: str

    @classmethod
    def create(cls, path: str | PathLike[str], *, name: str | None = None) -> RunDirectory:
        """Make the directory of a new run, named like the directory unless told otherwise."""
        directory = Path(path)
        _refuse_what_is_in_the_way(directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            run = {
                "schema_version": SCHEMA_VERSION,
                "name": name or directory.resolve().name,
                "started_at": time.time(),
                "rewardflow_version": _own_version(),
            }
            _write_atomically(directory / RUN_FILE, encode_line(run))
        except OSError as error:
            raise InvalidInput(f"a run directory must be writable, got {directory}: {error}") from error
        return cls.open(directory)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> RunDirectory:
        """Open the directory of a run that was started before."""
        directory = Path(path)
        file = directory / RUN_FILE
        try:
            run = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidInput(f"a run directory needs a readable {RUN_FILE}, got {file}: {error}") from error
        if not isinstance(run, dict) or not isinstance(run.get("schema_version"), int):
            raise InvalidInput(f"{RUN_FILE} must have a schema_version, got {file}: {run!r:.200}")
        if run["schema_version"] > SCHEMA_VERSION:
            raise InvalidInput(
                f"a run directory must have a schema version of at most {SCHEMA_VERSION}, got {run['schema_version']} "
                f"in {file}: it was written by rewardflow {run.get('rewardflow_version', 'of a later version')}"
            )
        try:
            name, started_at = str(run["name"]), float(run["started_at"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{RUN_FILE} must have a name and a started_at, got {file}: {run!r:.200}") from error
        version = str(run.get("rewardflow_version", "unknown"))
        return cls(path=directory, name=name, started_at=started_at, rewardflow_version=version)

    @classmethod
    def at(cls, path: str | PathLike[str], *, name: str | None = None) -> RunDirectory:
        """Open the run that is there, or create one. A run that exists keeps its name."""
        return cls.open(path) if (Path(path) / RUN_FILE).exists() else cls.create(path, name=name)

    @property
    def events_path(self) -> Path:
        return self.path / EVENTS_FILE

    @property
    def steps_path(self) -> Path:
        return self.path / STEPS_FILE

    @property
    def journal_path(self) -> Path:
        return self.path / JOURNAL_FILE

    def open_events(self) -> EventFile:
        """For writing; close it."""
        return EventFile(self.events_path)

    def open_steps(self) -> LineFile[Mapping[str, Any]]:
        """For appending `StepTotals.to_json()`; close it."""
        return LineFile(self.steps_path, dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFileStatistics:
    """Every line that was appended is in exactly one of these."""

    written: int
    waiting: int
    failed: int


class LineFile(Generic[T]):
    """A file of JSON lines that grows at its end, written by a thread of its own. One writer a file.

    `to_json` runs on that thread, so a record must not change once it is appended. The queue has no bound: what is not
    yet on disk waits in memory, because dropping it would lie and waiting would stop training.
    """

    def __init__(self, path: str | PathLike[str], to_json: Callable[[T], Mapping[str, Any]]) -> None:
        self.path = Path(path)
        self.failed = 0
        self._to_json = to_json
        self._written = 0
        self._queue: deque[T] = deque()
        self._some = threading.Event()  # there is something to write
        self._enough = threading.Event()  # there is enough to write it now, or this is the end
        self._closed = False
        self._complained = False
        try:
            self._file: int | None = _open_for_append(self.path)
        except OSError as error:
            raise InvalidInput(f"a file of lines must be writable, got {self.path}: {error}") from error
        self._thread = threading.Thread(target=self._run, name=f"rewardflow-{self.path.name}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def append(self, record: T) -> None:
        """Hand over a record from any thread; never waits, never raises."""
        if self._closed:
            self._fail(1, "it was appended after close")
            return
        self._queue.append(record)
        if not self._some.is_set():
            self._some.set()
        elif len(self._queue) >= BATCH_LINES and not self._enough.is_set():
            self._enough.set()

    def statistics(self) -> LineFileStatistics:
        return LineFileStatistics(written=self._written, waiting=len(self._queue), failed=self.failed)

    def close(self) -> None:
        """Write what is waiting, then let go of the file. Waits for the disk; closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._some.set()
        self._enough.set()
        self._thread.join()
        atexit.unregister(self.close)
        self._drain()  # whatever another thread appended during the last batch
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- the writer thread --

    def _run(self) -> None:
        while not self._closed:
            self._some.wait()
            self._enough.wait(FLUSH_S)
            # Cleared before the queue is read: a record that comes later sets them again.
            self._some.clear()
            self._enough.clear()
            self._drain()

    def _drain(self) -> None:
        while self._queue:
            lines = []
            for _ in range(min(len(self._queue), BATCH_LINES)):
                record = self._queue.popleft()
                try:
                    lines.append(encode_line(self._to_json(record)))
                except Exception as error:  # one record that cannot be encoded must not end the thread
                    self._fail(1, f"{type(record).__name__} cannot be encoded: {error!r}")
            if lines:
                self._write(b"".join(lines), len(lines))

    def _write(self, data: bytes, num_lines: int) -> None:
        left = memoryview(data)
        try:
            if self._file is None:
                self._file = _open_for_append(self.path)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            num_written = bytes(data[: len(data) - len(left)]).count(b"\n")
            self._written += num_written
            self._fail(num_lines - num_written, f"{error}")
            # A line may be cut short; opening again repairs that before anything follows it.
            if self._file is not None:
                with contextlib.suppress(OSError):
                    os.close(self._file)
                self._file = None
        else:
            self._written += num_lines

    def _fail(self, num_lines: int, reason: str) -> None:
        self.failed += num_lines
        if not self._complained:
            self._complained = True
            logger.error("%s lost lines, which are counted from here on without another word: %s", self.path, reason)


class EventFile:
    """The event sink on disk."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._lines: LineFile[Event] = LineFile(path, to_json)

    @property
    def path(self) -> Path:
        return self._lines.path

    @property
    def failed(self) -> int:
        """How many events could not be written."""
        return self._lines.failed

    def emit(self, event: Event) -> None:
        self._lines.append(event)

    def statistics(self) -> LineFileStatistics:
        return self._lines.statistics()

    def close(self) -> None:
        """Write what is waiting. Waits for the disk; closing twice is fine."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


# -- reading --


def read_events(path: str | PathLike[str]) -> Iterator[Event]:
    """The events of a run directory, or of one events.jsonl, one at a time."""
    file = _file_in(path, EVENTS_FILE)
    for number, data in _read_lines(file):
        try:
            event = from_json(data)
        except InvalidInput as error:
            raise InvalidInput(f"{file}, line {number}: {error}") from error
        yield event


def read_steps(path: str | PathLike[str]) -> dict[int, dict[str, dict[str, Any]]]:
    """The totals of every step, by step and source: `read_steps(path)[7]["reward"]["cost_usd"]`."""
    file = _file_in(path, STEPS_FILE)
    steps: dict[int, dict[str, dict[str, Any]]] = {}
    for number, data in _read_lines(file):
        version, step, source = data.get("v"), data.get("step"), data.get("source")
        if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
            raise InvalidInput(f"{file}, line {number}: v must be 1 to {SCHEMA_VERSION}, got {version!r}")
        if not isinstance(step, int) or not isinstance(source, str):
            raise InvalidInput(f"{file}, line {number}: a step and a source are needed, got {step!r} and {source!r}")
        steps.setdefault(step, {})[source] = data
    return dict(sorted(steps.items()))


def _read_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered lines. A run that has not written any has no file yet; a last line without an end was cut short."""
    try:
        lines = file.open("rb")
    except FileNotFoundError:
        return
    with lines:
        for number, line in enumerate(lines, start=1):
            data = _decode(line)
            if data is not None:
                yield number, data
            elif line.endswith(b"\n"):
                raise InvalidInput(f"{file}, line {number}: every line must be a JSON object, got {line[:80]!r}")


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _file_in(path: str | PathLike[str], name: str) -> Path:
    place = Path(path)
    if not place.exists():
        raise InvalidInput(f"a run directory or its {name} must exist, got {place}")
    return place / name if place.is_dir() else place


# -- writing --


def encode_line(data: Mapping[str, Any]) -> bytes:
    """One line of JSON in UTF-8, with what JSON or UTF-8 cannot hold replaced."""
    try:
        text = _encoder.encode(data)
    except (TypeError, ValueError):
        text = _encoder.encode(plain(data))
    return text.encode("utf-8", "replace") + b"\n"  # half a surrogate pair, as broken tokenizers make, becomes "?"


def _open_for_append(path: Path) -> int:
    """Open the file, made if missing, and repair its last line if a crash cut it short."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        tail = _unfinished_line(file)
        if tail and _decode(tail) is not None:
            os.write(file, b"\n")
        elif tail:
            logger.warning("%s ended in a line that was cut short; its %d bytes are removed", path, len(tail))
            os.ftruncate(file, os.fstat(file).st_size - len(tail))
    except OSError:
        os.close(file)
        raise
    return file


def _unfinished_line(file: int) -> bytes:
    """The bytes after the last line end."""
    start = os.fstat(file).st_size
    tail = b""
    while start > 0 and b"\n" not in tail:
        length = min(start, _TAIL_BYTES)
        start -= length
        tail = os.pread(file, length, start) + tail
    return tail.rpartition(b"\n")[2]


def _write_atomically(path: Path, data: bytes) -> None:
    draft = path.with_name(_DRAFT)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, data)
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(draft, path)


def _refuse_what_is_in_the_way(directory: Path) -> None:
    if not directory.exists():
        return
    if not directory.is_dir():
        raise InvalidInput(f"a run directory must be a directory, got the file {directory}")
    if (directory / RUN_FILE).exists():
        raise InvalidInput(f"a new run needs a directory of its own, got {directory}, which already holds one; open it")
    others = sorted(entry.name for entry in directory.iterdir() if entry.name != _DRAFT)
    if others:
        raise InvalidInput(
            f"a new run needs an empty directory, got {directory} without a {RUN_FILE} but with {', '.join(others[:5])}"
        )


def _own_version() -> str:
    try:
        return importlib.metadata.version("rewardflow")
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return "unknown"
