"""The demo's judge, on the clock that jumps."""

from __future__ import annotations

import asyncio

from rewardflow.cli.demo.slow_judge import SlowJudge
from rewardflow.clock import run
from rewardflow.types import Rollout


def a_rollout(group_id: str, index: int, response: str = "123") -> Rollout:
    return Rollout(group_id=group_id, index=index, group_size=8, response=response, ground_truth="123")


def test_a_call_takes_1_to_40_s_by_its_place_whatever_the_answer() -> None:
    judge = SlowJudge(seed=3, scale=1.0)
    delays_s = [judge.delay_s(a_rollout(str(group), index)) for group in range(100) for index in range(8)]
    assert len(set(delays_s)) == 800
    assert 1.0 <= min(delays_s) < 2.0
    assert 39.0 < max(delays_s) <= 40.0
    assert judge.delay_s(a_rollout("7", 2, "9")) == delays_s[7 * 8 + 2]
    assert SlowJudge(seed=4, scale=1.0).delay_s(a_rollout("7", 2)) != delays_s[7 * 8 + 2]


def test_a_verdict_is_the_share_of_right_characters_after_the_scaled_delay() -> None:
    judge = SlowJudge(seed=3, scale=0.5)
    assert run(judged(judge, "12")) == (2 / 3, judge.delay_s(a_rollout("7", 2)))


def test_without_a_scale_it_answers_at_once() -> None:
    assert run(judged(SlowJudge(seed=3, scale=0.0), "123")) == (1.0, 0.0)


async def judged(judge: SlowJudge, response: str) -> tuple[float, float]:
    """Returns the score, and how long it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    score = await judge.compute_score(a_rollout("7", 2, response))
    return score, loop.time() - began_s
