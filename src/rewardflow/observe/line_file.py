"""Writes append-only files of JSON lines from any thread, and reads them back.

Always true: a file holds whole lines of valid JSON, except for a last line that a crash cut short, which `read_lines`
skips and the next `LineFile` repairs; every appended record is written, waiting or counted as failed, never dropped
silently; appending neither waits for the disk nor raises.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rewardflow.errors import InvalidInput
from rewardflow.observe.events import plain
from rewardflow.observe.redact import hide_in_record, is_free_of_secrets

logger = logging.getLogger(__name__)

T = TypeVar("T")

FLUSH_S = 0.2
BATCH_LINES = 1000

_TAIL_BYTES = 65536
_OWN_WORDS = frozenset({"event", "kind", "outcome", "source", "status"})  # fields whose words are rewardflow's own

_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFileStatistics:
    """Counts each appended line in exactly one of these fields."""

    written: int
    waiting: int
    failed: int


class LineFile(Generic[T]):
    """An append-only file of JSON lines with its own writer thread. A file has one writer.

    `to_json` runs on that thread, so a record must not change once it is appended. The queue has no bound: records that
    are not yet on disk wait in memory, because dropping them would falsify the file and waiting would stop training.
    """

    def __init__(self, path: str | PathLike[str], to_json: Callable[[T], Mapping[str, Any]]) -> None:
        self.path = Path(path)
        self.failed = 0
        self._to_json = to_json
        self._written = 0
        self._queue: deque[T] = deque()
        self._has_records = threading.Event()
        self._write_now = threading.Event()  # a full batch waits, or the file is closing
        self._closed = False
        self._has_logged_loss = False
        self._drain_lock = threading.Lock()
        try:
            self._file: int | None = _open_for_append(self.path)
        except OSError as error:
            raise InvalidInput(f"a file of lines must be writable, got {self.path}: {error}") from error
        self._thread = threading.Thread(target=self._run, name=f"rewardflow-{self.path.name}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def append(self, record: T) -> None:
        """Queues a record, from any thread; never waits, never raises."""
        if self._closed:
            self._fail(1, "it was appended after close")
            return
        self._queue.append(record)
        if not self._has_records.is_set():
            self._has_records.set()
        elif len(self._queue) >= BATCH_LINES and not self._write_now.is_set():
            self._write_now.set()

    def statistics(self) -> LineFileStatistics:
        return LineFileStatistics(written=self._written, waiting=len(self._queue), failed=self.failed)

    def flush(self) -> None:
        """Waits for the disk until every record appended so far is in the file or counted as failed."""
        self._drain()

    def close(self) -> None:
        """Writes the waiting records and closes the file. Waits for the disk; closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._has_records.set()
        self._write_now.set()
        self._thread.join()
        atexit.unregister(self.close)
        self._drain()  # another thread may have appended records during the last batch
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
            self._has_records.wait()
            self._write_now.wait(FLUSH_S)
            # Cleared before the queue is read: a record that comes later sets them again.
            self._has_records.clear()
            self._write_now.clear()
            self._drain()

    def _drain(self) -> None:
        with self._drain_lock:  # keeps lines in order; a second caller returns after the first has written its lines
            while self._queue:
                self._write_batch()

    def _write_batch(self) -> None:
        lines = []
        for _ in range(min(len(self._queue), BATCH_LINES)):
            record = self._queue.popleft()
            try:
                lines.append(encode_line(self._to_json(record)))
            except Exception as error:  # one record that cannot be encoded must not end the thread
                self._fail(1, f"{type(record).__name__} cannot be encoded: {error!r}")
        if lines:
            self._write(_without_secrets(lines), len(lines))

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
            # The last line may be cut short; opening the file again repairs it before the next line.
            if self._file is not None:
                with contextlib.suppress(OSError):
                    os.close(self._file)
                self._file = None
        else:
            self._written += num_lines

    def _fail(self, num_lines: int, reason: str) -> None:
        self.failed += num_lines
        if not self._has_logged_loss:
            self._has_logged_loss = True
            logger.error("%s lost lines; further losses are counted but not logged: %s", self.path, reason)


# -- lines --


def read_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the lines with their numbers. Yields nothing without a file, and skips a last line that was cut short."""
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


def encode_line(data: Mapping[str, Any]) -> bytes:
    """Returns one line of JSON in UTF-8; replaces values that JSON or UTF-8 cannot hold."""
    try:
        text = _encoder.encode(data)
    except (TypeError, ValueError, RecursionError):
        text = _encoder.encode(plain(data))
    return text.encode("utf-8", "replace") + b"\n"  # half a surrogate pair, as broken tokenizers make, becomes "?"


def _without_secrets(lines: list[bytes]) -> bytes:
    """Joins the lines. Checks all of them at once, because secrets are rare and checks cost time."""
    joined = b"".join(lines)
    if is_free_of_secrets(joined.decode()):
        return joined
    return b"".join(encode_line({key: _hidden(key, value) for key, value in json.loads(one).items()}) for one in lines)


def _hidden(key: str, value: Any) -> Any:
    return value if key in _OWN_WORDS else hide_in_record(value)


def _open_for_append(path: Path) -> int:
    """Opens or creates the file, and repairs its last line if a crash cut it short."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        tail = _unfinished_line(file)
        if tail and _decode(tail) is not None:
            os.write(file, b"\n")
        elif tail:
            logger.warning("%s ended in an incomplete line; removed its %d bytes", path, len(tail))
            os.ftruncate(file, os.fstat(file).st_size - len(tail))
    except OSError:
        os.close(file)
        raise
    return file


def _unfinished_line(file: int) -> bytes:
    """Returns the bytes after the last line end."""
    start = os.fstat(file).st_size
    tail = b""
    while start > 0 and b"\n" not in tail:
        length = min(start, _TAIL_BYTES)
        start -= length
        tail = os.pread(file, length, start) + tail
    return tail.rpartition(b"\n")[2]
