"""A value that is slow to make, made once, by whichever thread needs it first.

Always true: of all threads that ask, one makes the value and the others wait for it; a failure is raised to whoever
made it, and the next one tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """`Once(make)()` is what `make()` returned the first time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []

    def __call__(self) -> T:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]
