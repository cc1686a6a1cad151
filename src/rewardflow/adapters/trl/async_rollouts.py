"""The rollout worker of TRL's asynchronous GRPO, with many groups at the judge at the same time.

Always true: TRL's own code generates, scores a group and hands over its samples; here it does so for several groups at
once instead of one after the other. Groups are handed over in the order in which their verdicts are complete.

`AsyncGRPOTrainer(..., rollout_worker=AsyncRolloutWorker(reward_funcs=[agent.as_batch_function(group_size=8)], ...))`
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trl.experimental.async_grpo import async_rollout_worker

from rewardflow.errors import InvalidInput

MAX_JUDGED_GROUPS = 256


class JudgingRolloutLoop(async_rollout_worker._AsyncRolloutLoop):
    """Runs in the worker's process. Reward functions that are not async wait in threads of their own."""

    def __init__(self, *, max_judged_groups: int = MAX_JUDGED_GROUPS, **named: Any) -> None:
        if max_judged_groups < 1:
            raise InvalidInput(f"max_judged_groups must be at least 1, got {max_judged_groups}")
        super().__init__(**named)
        self._max_judged_groups = max_judged_groups
        # TRL awaits other functions in the loop's default pool, which has a few threads more than the machine has cores
        self._loop.set_default_executor(ThreadPoolExecutor(max_judged_groups, thread_name_prefix="rewardflow-wait"))

    async def _score_loop(self, stop_event: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._max_judged_groups):
                group.create_task(super()._score_loop(stop_event))


class AsyncRolloutWorker(async_rollout_worker.AsyncRolloutWorker):
    """Takes what TRL's worker takes, and `max_judged_groups`."""

    _loop_cls = JudgingRolloutLoop
