"""Follows a group while its rollouts are generated and judged, in the one process that has them all.

Always true: every rollout ends once; a rollout that ends without having been sent to the reward ends every wait for a
verdict on the whole group at once, because the group will never be complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rewardflow.adapters.verl.accounting.group_report import GroupVerdicts
from rewardflow.errors import RewardflowError


class GroupIncomplete(RewardflowError):
    """A reward of whole groups cannot judge a group that lacks a rollout."""


@dataclass(slots=True)
class OpenGroup:
    """`needs_all` says whether the reward judges whole groups."""

    size: int
    validates: bool
    needs_all: bool
    verdicts: GroupVerdicts
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)  # by row, stored when all are there
    error: str | None = None
    _generated: set[int] = field(default_factory=set)
    _asked: set[int] = field(default_factory=set)
    _num_ended: int = 0
    _is_incomplete: bool = False
    _waiting: set[asyncio.Timeout] = field(default_factory=set)

    @property
    def is_generated(self) -> bool:
        return len(self._generated) == self.size

    @property
    def is_over(self) -> bool:
        return self._num_ended == self.size

    def generated(self, session: int) -> bool:
        """Notes that a rollout's generation ended, well or not. Returns True if it was the group's last."""
        was_generated = self.is_generated
        self._generated.add(session)
        return self.is_generated and not was_generated

    def ended(self, session: int) -> None:
        """Notes that generating and judging a rollout are over."""
        self._num_ended += 1
        if session not in self._asked and self.needs_all:
            self._is_incomplete = True
            for limit in self._waiting:
                limit.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def asking(self, session: int) -> AsyncIterator[None]:
        """Wraps the wait for a verdict; raises `GroupIncomplete` as soon as the verdict cannot come."""
        self._asked.add(session)
        if self._is_incomplete:
            raise GroupIncomplete(self._incomplete)
        try:
            async with asyncio.timeout(None) as limit:
                self._waiting.add(limit)
                try:
                    yield
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            if limit.expired():
                raise GroupIncomplete(self._incomplete) from None
            raise

    @property
    def _incomplete(self) -> str:
        return (
            f"the reward judges whole groups, and a rollout of this one is missing: {self.error or 'it has no output'}"
        )
