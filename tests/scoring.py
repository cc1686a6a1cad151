"""Scores rollouts with an agent on the virtual clock, for tests that only look at the verdicts."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any

from rollouts import group

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.processes.process_pool import ProcessPool
from rewardflow.reward.code.thread_pool import ThreadPool


def score_groups(reward: Any, rollouts: Sequence[rf.Rollout], **options: Any) -> list[rf.ScoredGroup]:
    """Submits a batch and returns its groups in the order of submission. Options are those of the agent."""

    async def main() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(reward, **options) as agent:
            return await agent.submit(rollouts).all()

    return clock.run(main())


def score(reward: Any, rollouts: Sequence[rf.Rollout], **options: Any) -> list[rf.Reward]:
    """Returns one reward for each rollout, in the order of whole groups."""
    return [verdict for one in score_groups(reward, rollouts, **options) for verdict in one.rewards]


def score_one(reward: Any, response: str = "7", **options: Any) -> rf.Reward:
    return score(reward, group("g", response), **options)[0]


def values(groups: Sequence[rf.ScoredGroup]) -> dict[str, list[float | None]]:
    """Returns the scores of each group, by its name."""
    return {one.group_id: [reward.value for reward in one.rewards] for one in groups}


async def call_pool(workers: ThreadPool | ProcessPool, call: Call | None = None, **kwargs: Any) -> Any:
    """Makes one call in a pool of threads or processes, without an agent."""
    return await workers.call(kwargs, call or Call(()), contextvars.copy_context())
