"""The agent against a limit that counts calls in windows of a minute: a full one delays rollouts, and fails none."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest
from rollouts import numbered
from scoring import score

import rewardflow as rf

MINUTE_S = 60.0
PER_MINUTE = 600


class WindowedJudge:
    """Accepts 600 calls in a minute, as they come, without a word about the limit."""

    def __init__(self, *, slides: bool, seed: int) -> None:
        self._slides = slides
        self._rng = random.Random(seed)
        self._begins_s = self._rng.uniform(0.0, MINUTE_S)
        self._accepted: deque[float] = deque()
        self.ended_s = 0.0

    async def __call__(self, rollout: rf.Rollout) -> float:
        await asyncio.sleep(self._rng.uniform(0.0, 0.02))
        now = asyncio.get_running_loop().time()
        while self._accepted and self._end_s(self._accepted[0]) <= now:
            self._accepted.popleft()
        if len(self._accepted) >= PER_MINUTE:
            await asyncio.sleep(0.05)
            raise rf.RateLimited()
        self._accepted.append(now)
        await asyncio.sleep(self._rng.uniform(0.5, 2.0))
        self.ended_s = asyncio.get_running_loop().time()
        return 1.0

    def _end_s(self, accepted_s: float) -> float:
        if self._slides:
            return accepted_s + MINUTE_S
        return self._begins_s + MINUTE_S * ((accepted_s - self._begins_s) // MINUTE_S + 1.0)


@pytest.mark.parametrize("slides", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_full_window_fails_no_rollout_and_the_next_ones_are_used(slides: bool, seed: int) -> None:
    judge = WindowedJudge(slides=slides, seed=seed)
    rewards = score(judge, numbered(4000), max_concurrency=256, timeout_s=MINUTE_S)
    assert [reward.value for reward in rewards] == [1.0] * 4000
    assert judge.ended_s <= 1.3 * MINUTE_S * 4000 / PER_MINUTE
