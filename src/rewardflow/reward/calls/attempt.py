"""One call that is out: which job it is for, what it holds, and its time limit.

The time limit is part of the attempt, not beside it, because the objects of a call in flight are what thousands of them
cost in memory and garbage collection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rewardflow.reward.calls.deadlines import Deadline, Deadlines

if TYPE_CHECKING:
    from rewardflow.reward.code.current_call import Call
    from rewardflow.reward.groups.job import Job
    from rewardflow.reward.limits.endpoints import Endpoint
    from rewardflow.reward.limits.pace import Start


class Attempt(Deadline):
    """A context manager round the wait for its answer. What it holds is set by `Governors.start` and settled once."""

    __slots__ = ("call", "endpoint", "hedge_timer", "is_hedge", "job", "reserved_usd", "sent", "started_s", "was_made")

    call: Call
    endpoint: Endpoint
    reserved_usd: float
    sent: Start

    def __init__(self, deadlines: Deadlines, job: Job, is_hedge: bool, started_s: float) -> None:
        super().__init__(deadlines)
        self.job = job
        self.is_hedge = is_hedge
        self.started_s = started_s
        self.was_made = False
        self.hedge_timer: asyncio.TimerHandle | None = None
