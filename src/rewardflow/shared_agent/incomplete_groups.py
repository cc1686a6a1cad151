"""Groups that are judged as a whole and lack rollouts, and when they are given up.

Always true: a group is given up once nothing has come for it for the set time, so nobody waits for ever for what a
process that died was to send. Nobody here can know who was to send it: that time is all there is to go by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GroupKey = tuple[str, int, str]  # run, step, name


class LackingGroups:
    """`give_up` is called with each group whose time is up. `after_s` None: never."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, after_s: float | None, give_up: Callable[[GroupKey], None]
    ) -> None:
        self._loop = loop
        self._after_s = after_s
        self._give_up = give_up
        self._since_s: dict[GroupKey, float] = {}  # in the order of their times
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since_s)

    def came(self, key: GroupKey) -> None:
        """Something came for the group, and something is still missing."""
        self._since_s.pop(key, None)
        self._since_s[key] = self._loop.time()
        if self._timer is None:
            self._look_later()

    def forget(self, key: GroupKey) -> None:
        """It is whole, or over."""
        self._since_s.pop(key, None)

    def close(self) -> None:
        self._since_s.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        first_s = next(iter(self._since_s.values()), None)
        if first_s is not None and self._after_s is not None:
            self._timer = self._loop.call_at(first_s + self._after_s, self._look)

    def _look(self) -> None:
        self._timer = None
        assert self._after_s is not None
        now = self._loop.time()
        due = [key for key, since_s in self._since_s.items() if since_s + self._after_s <= now]  # as the timer was set
        for key in due:
            del self._since_s[key]
        self._look_later()
        for key in due:
            self._give_up(key)
