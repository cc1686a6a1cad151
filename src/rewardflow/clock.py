"""A clock that jumps: an event loop whose time goes straight to the next timer when nothing else is left to do.

Always true: code that takes its time from the running loop cannot tell this clock from a real one, except that hours
pass in milliseconds and every run is the same; a timer never fires before its time. Work outside the loop (a thread,
a commit to disk) takes real time, so whoever hands work out says so with `hold(loop)`, and the clock stands still
for it instead of jumping past it.
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
    """Instead of sleeping until the next timer, moves the loop's clock there."""

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
        """Move the clock. Only the loop itself does, when nothing is left to do before its next timer."""
        self.now_s += duration_s
        # The loop runs the timers that are due before time() + resolution. With asyncio's fixed 1 ns, timers fire up to
        # that early, and after 194 virtual days, when floats lie further apart, one that is due now never fires.
        self._clock_resolution = math.ulp(self.now_s)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if when == math.inf:
            # `asyncio.sleep(math.inf)` means never: left in the heap, the clock would chase it day by day.
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        with hold(self):  # joining threads takes real time; asyncio gives it minutes, which here pass at once
            await super().shutdown_default_executor(*args, **kwargs)


def run(main: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
    """Like `asyncio.run`, on a clock that jumps; with a seed, chance is the same every time too."""
    if asyncio._get_running_loop() is not None:
        main.close()
        raise InvalidInput("clock.run must not be called from a running event loop; await the coroutine instead")
    with asyncio.Runner(loop_factory=lambda: JumpingLoop(seed)) as runner:
        return runner.run(main)


def chance(loop: asyncio.AbstractEventLoop) -> random.Random:
    """Where chance comes from, such as the jitter of retries: seeded where the clock is."""
    return random.Random(loop.seed if isinstance(loop, JumpingLoop) else None)


def begin_hold(loop: asyncio.AbstractEventLoop) -> None:
    """Say that real work goes on outside the loop; a jumping clock stands still until `end_hold`. Loop thread only."""
    if isinstance(loop, JumpingLoop):
        loop.held += 1


def end_hold(loop: asyncio.AbstractEventLoop) -> None:
    """The work is done and its result is on the loop. Loop thread only, where it takes effect at once."""
    if isinstance(loop, JumpingLoop):
        if loop.held <= 0:
            raise InvalidInput("every end_hold must have its begin_hold, got one more end")
        loop.held -= 1


@contextlib.contextmanager
def hold(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """`begin_hold` and `end_hold` round a block."""
    begin_hold(loop)
    try:
        yield
    finally:
        end_hold(loop)
