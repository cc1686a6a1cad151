"""Time limits for many calls at once, on one timer of the loop.

Always true: `with Deadline(deadlines, when_s): await ...` ends with TimeoutError when its time has passed or `expire()`
was called, even if the code inside returns an answer afterwards. `asyncio.timeout_at` makes one timer for each call, in
a heap that Python code orders; here one timer, for the earliest deadline, serves all.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from types import TracebackType
from typing import Any, Self

_MANY = 512


class Deadline:
    """The time limit of one call; a context manager round its await.

    `task` is the task that awaits the call. A caller that knows it may set it, which saves looking it up.
    """

    __slots__ = ("_deadlines", "_num_requests", "is_expired", "is_over", "task", "when_s")

    def __init__(self, deadlines: Deadlines, when_s: float | None = None) -> None:
        self._deadlines = deadlines
        self.task: asyncio.Task[Any] | None = None
        self._num_requests = 0
        self.when_s = when_s
        self.is_expired = False
        self.is_over = False

    def __enter__(self) -> Self:
        task = self.task = self.task or asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline can only be kept inside a task")
        self._num_requests = task.cancelling()
        self._deadlines.watch(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.is_over = True
        self._deadlines.forget(self)
        is_cancelled = exc_type is not None and issubclass(exc_type, asyncio.CancelledError)
        if self.task is not None and (self.is_expired or not is_cancelled):
            # Our own request, or one left by the code inside: before Python 3.13 a failed task group removes none.
            while self.task.cancelling() > self._num_requests and not _is_cancellation_due(self.task):
                self.task.uncancel()
        if self.is_expired and (exc_type is None or is_cancelled):
            # Even if the code inside caught the cancellation and returned an answer.
            raise TimeoutError(*(exc.args if exc else ())) from exc

    @property
    def at_s(self) -> float:
        return math.inf if self.when_s is None else self.when_s

    def expire(self) -> None:
        """Ends the wait now."""
        if self.is_over or self.is_expired or self.task is None:
            return
        self.is_expired = True
        if self.task is asyncio.current_task():
            # The code inside called this: cancelling now would hit the code after this block.
            asyncio.get_running_loop().call_soon(self._cancel)
        else:
            self.task.cancel()

    def _cancel(self) -> None:
        if not self.is_over and self.task is not None:
            self.task.cancel()


def _is_cancellation_due(task: asyncio.Task[Any]) -> bool:
    """Whether the task will get a CancelledError when it next waits; before Python 3.13 `uncancel` does not undo this.

    The request must then stay, so that the task's owner sees it and lets the task end.
    """
    return bool(getattr(task, "_must_cancel", False))


class Deadlines:
    """Most calls have the same limit, so most deadlines come in order and fit a queue; a heap holds the others."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Deadline] = deque()
        self._heap: list[tuple[float, int, Deadline]] = []
        self._num_watched = 0
        self._num_live = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, deadline: Deadline) -> None:
        when_s = deadline.when_s
        if when_s is None:
            return
        self._num_live += 1
        if not self._queue or self._queue[-1].at_s <= when_s:
            self._queue.append(deadline)
        else:
            self._num_watched += 1
            heapq.heappush(self._heap, (when_s, self._num_watched, deadline))
        if self._timer is None or when_s < self._timer.when():
            self._arm(when_s)

    def forget(self, deadline: Deadline) -> None:
        """Drops deadlines that are over, once they are the majority."""
        if deadline.when_s is None:
            return
        self._num_live -= 1
        num_kept = len(self._queue) + len(self._heap)
        if self._num_live == 0:
            self._queue.clear()
            self._heap.clear()
            self._arm(None)
        elif num_kept > _MANY and self._num_live < num_kept // 2:
            self._queue = deque(kept for kept in self._queue if not kept.is_over)
            self._heap = [entry for entry in self._heap if not entry[2].is_over]
            heapq.heapify(self._heap)

    def _arm(self, when_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when_s is None else self._loop.call_at(when_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        queue, heap, now = self._queue, self._heap, self._loop.time()
        while queue and (queue[0].is_over or queue[0].at_s <= now):
            queue.popleft().expire()
        while heap and (heap[0][2].is_over or heap[0][0] <= now):
            heapq.heappop(heap)[2].expire()
        earliest = [queue[0].at_s] if queue else []
        earliest += [heap[0][0]] if heap else []
        self._arm(min(earliest, default=None))
