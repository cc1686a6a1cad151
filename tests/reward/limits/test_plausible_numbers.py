"""Which numbers of a service are believed, and what is said of the others."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.limits.plausible_numbers import CALL_COST_USD, CALL_TOKENS, RPM, TPM, WAIT_S, Bounds

ANYTHING = st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.none(), st.lists(st.integers()))


@given(st.sampled_from([CALL_COST_USD, CALL_TOKENS, RPM, TPM, WAIT_S]), ANYTHING)
def test_any_value_is_none_or_finite_and_within_the_bounds(bounds: Bounds, value: Any) -> None:
    number = bounds.read(value, "x")
    assert number is None or (math.isfinite(number) and bounds.low <= number <= bounds.high)


@pytest.mark.parametrize("value", [True, "12", 1.5, -1, math.nan, math.inf, 1e30, 10**30, 10**400, None, [1]])
def test_what_is_no_count_is_none(value: Any) -> None:
    assert CALL_TOKENS.count(value, "usage.prompt_tokens") is None


def test_a_number_can_have_a_tighter_bound() -> None:
    assert CALL_TOKENS.count(500, "usage.prompt_tokens", at_most=499) is None
    assert CALL_TOKENS.count(500, "usage.prompt_tokens", at_most=500) == 500


def test_an_ignored_value_is_named_once_with_its_bounds(caplog: pytest.LogCaptureFixture) -> None:
    bounds = Bounds(0, 1000, "tokens in a call", is_whole=True)
    with caplog.at_level(logging.WARNING):
        for value in (10**30, -1, "x" * 1000):
            assert bounds.read(value, "usage.total_tokens") is None
        assert bounds.read("x\n" * 1000, "usage.prompt_tokens") is None
    first, second = caplog.messages
    assert "usage.total_tokens = 1000000000000000000000000000000, which is ignored" in first
    assert "a whole number from 0 to 1000 tokens in a call" in first
    assert len(second) < 250
    assert "\n" not in second


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-limit-requests": "0.0001"},
        {"x-ratelimit-limit-requests": "1e308", "x-ratelimit-limit-tokens": "1e-9"},
        {"x-ratelimit-limit-tokens": "0.5"},
        {"x-ratelimit-limit-requests": "-inf", "retry-after": "nan"},
        {"retry-after": "315360000"},
    ],
)
@pytest.mark.parametrize("is_refused", [False, True])
def test_one_absurd_header_does_not_halt_a_run(headers: dict[str, str], is_refused: bool) -> None:
    num_calls = 0

    async def reward(rollout: rf.Rollout) -> float:
        nonlocal num_calls
        num_calls += 1
        rf.report_usage(tokens=800)
        if num_calls == 1:
            if is_refused:
                raise rf.RateLimited(headers=headers)
            rf.report_headers(headers)
        return 1.0

    async def run() -> list[rf.ScoredGroup]:
        rollouts = [rf.Rollout(group_id=str(i), response="") for i in range(20)]
        async with rf.RewardAgent(reward, max_concurrency=4) as agent:
            return await agent.submit(rollouts).all()

    groups = clock.run(run())
    assert all(reward.is_scored for group in groups for reward in group.rewards)
