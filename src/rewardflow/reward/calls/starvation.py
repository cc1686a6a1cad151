"""Tells how long a thread was ready to run and had no core, so that a busy machine is not taken for slow code.

Always true: the answer covers at least the time since the last `look`, and at most `_EVERY_S` more; looking costs
a comparison of times, and reading a small file once in `_EVERY_S`. It is 0 where the system does not tell: only Linux
does.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

_EVERY_S: Final = 1.0  # opening a file hands the interpreter's lock to other threads for up to 5 ms
_OF_THIS_THREAD: Final = Path("/proc/thread-self/schedstat")


class Starvation(threading.local):
    """The waiting time of each thread that uses it, since about its last look."""

    def __init__(self, file: Path = _OF_THIS_THREAD) -> None:
        self._file = file
        self._looked_s = float("-inf")
        self._waited_s = 0.0

    def look(self, now_s: float) -> None:
        """Begins to count, unless a count began a moment ago."""
        if now_s - self._looked_s > _EVERY_S:
            self._looked_s = now_s
            self._waited_s = self._read_s()

    def waited_s(self) -> float:
        """Returns the seconds without a core since the count began."""
        return self._read_s() - self._waited_s

    def _read_s(self) -> float:
        """Reads how long the thread has ever waited for a core: the second of the file's numbers, in nanoseconds."""
        try:
            return int(self._file.read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0
