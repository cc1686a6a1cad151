"""Runs a loaded reward: on the event loop, in threads or in processes.

Always true: a call returns what the reward returned or raises what it raised; it never blocks the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.code.contract import LoadedReward, with_own_values
from rewardflow.reward.code.coroutine_driver import begin_coroutine
from rewardflow.reward.code.current_call import enter_call
from rewardflow.reward.code.processes.process_pool import ProcessPool
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.code.thread_pool import ThreadPool
from rewardflow.reward.settings import AUTO, MAX_THREADS, LimitSettings
from rewardflow.types import Rollout

WorkerPool = ThreadPool | ProcessPool


class Scorer:
    """A loaded reward with the pool it runs in; without a pool it runs on the loop. The dispatcher calls it."""

    def __init__(self, name: str, loaded: LoadedReward, workers: WorkerPool | None) -> None:
        self.name = name
        self.loaded = loaded
        self.workers = workers
        self.num_busy = 0

    def start(self, loop: asyncio.AbstractEventLoop, on_usable: Callable[[], None]) -> None:
        if self.workers is not None:
            self.workers.on_usable = on_usable
            self.workers.start(loop)

    @property
    def num_usable(self) -> float:
        """The number of calls that can run at once."""
        return math.inf if self.workers is None else self.workers.num_usable

    @property
    def num_stuck(self) -> int:
        return 0 if self.workers is None else self.workers.statistics().abandoned

    def estimate_tokens(self, rollouts: Sequence[Rollout], usual: int) -> int:
        """Returns how many tokens a call will use: the reward's own estimate, or else `usual`."""
        estimate = self.loaded.estimate_tokens
        return usual if estimate is None else sum(estimate(with_own_values(rollout)) for rollout in rollouts)

    def cost_bound_usd(self, rollouts: Sequence[Rollout]) -> float | None:
        """Returns the most that a call can cost, as its reward tells it; None if it tells none."""
        bound = self.loaded.cost_bound_usd
        if bound is None:
            return None
        total_usd = 0.0
        for rollout in rollouts:
            one_usd = bound(with_own_values(rollout))
            if one_usd is None:
                return None
            if not 0 <= one_usd < math.inf:
                raise InvalidInput(f"cost_bound_usd must return a finite number of at least 0 or None, got {one_usd!r}")
            total_usd += one_usd
        return total_usd

    def begin(self, attempt: Attempt, context: contextvars.Context) -> tuple[bool, Any]:
        """Starts the call. Returns True and the result if it ended at once, else False and an awaitable for it."""
        rollouts = attempt.job.rollouts
        if len(rollouts) > 1:
            rollouts = attempt.call.rollouts = tuple(map(with_own_values, rollouts))
        elif (own := with_own_values(rollouts[0])) is not rollouts[0]:
            rollouts = attempt.call.rollouts = (own,)
        kwargs = self.loaded.arguments(rollouts)
        if self.workers is not None:
            return False, self.workers.call(kwargs, attempt.call, context)
        context.run(enter_call, attempt.call)
        return begin_coroutine(context.run(self.loaded.function, **kwargs), context, self.name, attempt)

    async def aclose(self, timeout_s: float) -> None:
        if self.workers is not None:
            await self.workers.aclose(timeout_s)


def make_worker_pool(source: RewardSource, loaded: LoadedReward, limits: LimitSettings) -> WorkerPool | None:
    """Chooses where a reward runs: async ones on the loop (None), up to 1024 calls in threads, else in processes.

    The setting `workers="process"` asks for processes at any number of calls.
    """
    if loaded.is_async:
        if limits.workers == "process":
            raise InvalidInput(f"workers='process' is for plain functions, and reward {loaded.name} is async")
        return None
    wanted = MAX_THREADS if limits.max_concurrency == AUTO else limits.max_concurrency
    if loaded.max_at_once is not None:
        wanted = min(wanted, loaded.max_at_once)
    if limits.workers == "process":
        processes = limits.processes or min(wanted, os.cpu_count() or 1)
        return ProcessPool(source, processes=processes, threads_per_process=1, name=loaded.name)
    if wanted > MAX_THREADS:
        processes = limits.processes or -(-wanted // MAX_THREADS)
        threads = -(-wanted // processes)
        return ProcessPool(source, processes=processes, threads_per_process=threads, name=loaded.name)
    return ThreadPool(loaded.function, size=wanted, max_abandoned=limits.max_abandoned, name=loaded.name)
