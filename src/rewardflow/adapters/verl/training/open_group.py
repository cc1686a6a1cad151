"""A group while its rollouts are generated and judged, in the one process that has them all.

Always true: every rollout ends once; whoever waits for a verdict that needs the whole group is let go the moment a
rollout ends that the reward was never asked about, because the group will never be whole then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rewardflow.adapters.verl.training.group_board import GroupJudged
from rewardflow.errors import RewardflowError


class GroupIncomplete(RewardflowError):
    """A reward of whole groups cannot judge a group that lacks a rollout."""


@dataclass(slots=True)
class GroupUnderWay:
    """`needs_all` is whether the reward judges whole groups."""

    size: int
    validates: bool
    needs_all: bool
    first_generated_s: float | None = None
    verdicts: list[GroupJudged] = field(default_factory=list)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)  # by row, to be stored when all are there
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
        """A rollout's generation is over, for better or worse. True if that was the group's last."""
        was_generated = self.is_generated
        self._generated.add(session)
        return self.is_generated and not was_generated

    def ended(self, session: int) -> None:
        """A rollout is over altogether."""
        self._num_ended += 1
        if session not in self._asked and self.needs_all:
            self._is_incomplete = True
            for limit in self._waiting:
                limit.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def asking(self, session: int) -> AsyncIterator[None]:
        """Round the wait for a verdict."""
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
