"""Gives up groups that are judged as a whole and lack rollouts for too long.

Always true: a group is given up once no rollout has arrived for it for the set time, so no client waits for ever for a
process that died. The host cannot know which process was to send the missing rollouts, so time is the only criterion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GroupKey = tuple[str, int, str]  # run, step, name


class IncompleteGroups:
    """Calls `give_up` with each group for which nothing arrived for `after_s`; never if that is None."""

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

    def rollout_arrived(self, key: GroupKey) -> None:
        """Starts the group's time again: a rollout has arrived, and others are still missing."""
        self._since_s.pop(key, None)
        self._since_s[key] = self._loop.time()
        if self._timer is None:
            self._set_timer()

    def forget(self, key: GroupKey) -> None:
        """Stops watching a group that is whole or over."""
        self._since_s.pop(key, None)

    def close(self) -> None:
        self._since_s.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        first_s = next(iter(self._since_s.values()), None)
        if first_s is not None and self._after_s is not None:
            self._timer = self._loop.call_at(first_s + self._after_s, self._give_up_due)

    def _give_up_due(self) -> None:
        self._timer = None
        assert self._after_s is not None
        now = self._loop.time()
        due = [key for key, since_s in self._since_s.items() if since_s + self._after_s <= now]  # as the timer was set
        for key in due:
            del self._since_s[key]
        self._set_timer()
        for key in due:
            self._give_up(key)
