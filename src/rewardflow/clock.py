"""Provides a clock that jumps: an event loop that skips straight to the next timer when nothing else is left to do.

Always true: code that takes its time from the running loop cannot tell this clock from a real one, except that hours
pass in milliseconds and every run is the same; a timer never fires before its time.

Work outside the loop (a thread, a commit to disk) takes real time. Code that starts such work wraps it in `hold(loop)`,
and the clock stops until the work is done instead of jumping past it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

from rewardflow.errors import InvalidInput

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the loop's clock to the next timer instead of sleeping until then."""

    loop: JumpingLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.held > 0 or timeout is None:
            return super().select(None)
        self.loop.jump(timeout)
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on a virtual clock that starts at zero."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.held = 0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self.jump(0.0)

    def time(self) -> float:
        return self.now_s

    def jump(self, duration_s: float) -> None:
        """Moves the clock forward. Only the loop calls this, when nothing is left to do before its next timer."""
        self.now_s += duration_s
        # The loop runs the timers that are due before time() + resolution. With asyncio's fixed 1 ns, timers would fire
        # up to 1 ns early; after 194 virtual days, when floats lie further apart, a timer due now would never fire.
        self._clock_resolution = math.ulp(self.now_s)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if when == math.inf:
            # `asyncio.sleep(math.inf)` means never. In the heap, such a timer would make the clock jump day by day.
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        with hold(self):  # joining threads takes real time; asyncio's timeout of minutes would pass here at once
            await super().shutdown_default_executor(*args, **kwargs)


def run(main: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
    """Works like `asyncio.run`, on a clock that jumps. With a seed, random numbers repeat in every run, too."""
    if asyncio._get_running_loop() is not None:
        main.close()
        raise InvalidInput("clock.run must not be called from a running event loop; await the coroutine instead")
    with asyncio.Runner(loop_factory=lambda: JumpingLoop(seed)) as runner:
        return runner.run(main)


def chance(loop: asyncio.AbstractEventLoop) -> random.Random:
    """Returns the random generator of a loop, for example for the jitter of retries; seeded if the loop's clock is."""
    return random.Random(loop.seed if isinstance(loop, JumpingLoop) else None)


def begin_hold(loop: asyncio.AbstractEventLoop) -> None:
    """Stops a jumping clock until `end_hold`, because work runs outside the loop. Call it on the loop thread only."""
    if isinstance(loop, JumpingLoop):
        loop.held += 1


def end_hold(loop: asyncio.AbstractEventLoop) -> None:
    """Lets the clock jump again: the work is done and its result is on the loop. Call it on the loop thread only."""
    if isinstance(loop, JumpingLoop):
        if loop.held <= 0:
            raise InvalidInput("every end_hold must have its begin_hold, got one more end")
        loop.held -= 1


@contextlib.contextmanager
def hold(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Calls `begin_hold` before a block and `end_hold` after it."""
    begin_hold(loop)
    try:
        yield
    finally:
        end_hold(loop)
