"""One call that is out: which job it is for, what it holds, and its time limit.

The time limit is part of the attempt, not beside it, because the objects of a call in flight are what thousands of them
cost in memory and garbage collection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rewardflow.reward.deadlines import Deadline, Deadlines

if TYPE_CHECKING:
    from rewardflow.reward.call import Call
    from rewardflow.reward.governors import Permit
    from rewardflow.reward.job import Job


class Attempt(Deadline):
    """A context manager round the wait for its answer."""

    __slots__ = ("call", "hedge_timer", "is_hedge", "job", "permit")

    def __init__(
        self, deadlines: Deadlines, when_s: float | None, job: Job, call: Call, permit: Permit, is_hedge: bool
    ) -> None:
        super().__init__(deadlines, when_s)
        self.job = job
        self.call = call
        self.permit = permit
        self.is_hedge = is_hedge
        self.hedge_timer: asyncio.TimerHandle | None = None
