"""One call in flight: its job, the resources it holds, and its time limit.

An attempt is its own time limit, because with thousands of calls in flight every object of a call costs memory and
garbage collection.
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
    """A context manager round the wait for an answer. `Governors.start` sets its resources; they are settled once."""

    __slots__ = (
        "call",
        "endpoint",
        "hedge_timer",
        "is_hedge",
        "job",
        "reserved_usd",
        "retry_after_s",
        "run_reserved_usd",
        "sent",
        "started_s",
        "was_made",
    )

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
        self.retry_after_s: float | None = None  # how long the service asked to wait, as far as it is believed
        self.run_reserved_usd = 0.0
        self.hedge_timer: asyncio.TimerHandle | None = None
