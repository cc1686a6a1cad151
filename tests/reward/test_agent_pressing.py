"""The agent against a limit without a burst behind a network of uneven delay: most calls are refused, none is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from rollouts import numbered
from scoring import score

import rewardflow as rf
from rewardflow.reward.simulated_service import SimulatedService

MINUTE_S = 60.0


class UnevenJudge:
    """Scores by a service of 600 calls a minute; the request of one rollout is always refused."""

    def __init__(self, refused: str = "", *, seed: int = 0, latency_s: float = 1.0, rejection_s: float = 0.05) -> None:
        self.service = SimulatedService(rpm=600, burst=1, latency_s=latency_s, rejection_latency_s=rejection_s)
        self.attempts: Counter[str] = Counter()
        self._refused = refused
        self._rng = random.Random(seed)

    async def __call__(self, rollout: rf.Rollout) -> float:
        self.attempts[rollout.response] += 1
        await asyncio.sleep(self._rng.uniform(0.0, 0.2))
        if rollout.response == self._refused:
            raise rf.RateLimited()
        await self.service.call()
        rf.report_usage(cost_usd=0.001)
        return 1.0


def scored(judge: UnevenJudge, count: int, **settings: Any) -> list[rf.Reward]:
    return score(judge, numbered(count), **settings)


def test_a_pressed_limit_is_used_at_four_fifths_and_every_rollout_gets_its_score() -> None:
    judge = UnevenJudge()
    rewards = scored(judge, 6000)
    assert [reward.value for reward in rewards] == [1.0] * 6000
    assert judge.service.accepted_share(5 * MINUTE_S, 10 * MINUTE_S) >= 0.8
    assert judge.service.rejected_share(5 * MINUTE_S, 10 * MINUTE_S) <= 0.86


def test_no_rollout_fails_as_refused_where_the_slots_are_too_few_for_the_rate() -> None:
    judge = UnevenJudge(seed=2, latency_s=0.1, rejection_s=0.3)
    rewards = scored(judge, 8000, max_concurrency=18)
    assert not any(reward.value is None for reward in rewards)


def test_a_request_that_is_always_refused_fails_also_while_most_are() -> None:
    judge = UnevenJudge(refused="5000")
    rewards = scored(judge, 6000)
    assert [reward.kind for reward in rewards if reward.value is None] == ["rate_limited"]
    assert 10 < judge.attempts["5000"] <= 130


@pytest.mark.parametrize("max_refused", [0.0, 0.2])
def test_a_limit_is_not_pressed_if_few_calls_may_be_refused(max_refused: float) -> None:
    judge = UnevenJudge()
    rewards = scored(judge, 3000, max_refused=max_refused)
    assert not any(reward.value is None for reward in rewards)
    assert judge.service.rejected_share(3 * MINUTE_S, 10 * MINUTE_S) <= 0.2


def test_refused_calls_of_a_pressed_limit_cost_nothing_under_a_cap() -> None:
    judge = UnevenJudge()
    rewards = scored(judge, 4000, max_cost_usd=4.001, call_cost_usd=0.001)
    assert not any(reward.value is None for reward in rewards)
    assert judge.service.num_rejected > 4000
