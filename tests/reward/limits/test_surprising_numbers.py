"""One odd number of a service changes little; a number that a second answer repeats is believed."""

from __future__ import annotations

import asyncio

import pytest
from rollouts import numbered

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.limits.surprising_numbers import AnnouncedLimit, AskedWaits, UsualTokens

# -- limits --


def busy(num_calls: int = 50) -> AnnouncedLimit:
    """A limit of a service that accepted these calls within a few seconds."""
    limit = AnnouncedLimit("requests")
    for number in range(num_calls):
        limit.accepted(1.0, 0.1 * number)
    return limit


def test_the_first_announced_limit_is_believed_if_nothing_contradicts_it() -> None:
    assert AnnouncedLimit("requests").believe(1.0) == 1.0
    assert busy(50).believe(60.0) == 60.0


def test_a_limit_far_below_what_was_just_accepted_is_believed_from_the_second_answer_on() -> None:
    limit = busy(50)
    assert [limit.believe(1.0) for _ in range(4)] == [None, 1.0, 1.0, 1.0]


def test_a_limit_far_from_the_one_announced_before_is_believed_from_the_second_answer_on() -> None:
    limit = AnnouncedLimit("tokens")
    assert limit.believe(300_000.0) == 300_000.0
    assert [limit.believe(value) for value in (100.0, 300_000.0, 100.0, 300_000.0)] == [None, 300_000.0] * 2
    assert [limit.believe(900_000.0) for _ in range(2)] == [None, 900_000.0]


def test_two_odd_limits_that_differ_do_not_confirm_each_other() -> None:
    limit = busy(100)
    assert [limit.believe(value) for value in (1.0, 10.0, 1.0)] == [None, None, None]


def test_a_repeat_after_many_answers_without_it_is_another_accident() -> None:
    limit = busy(50)
    assert limit.believe(1.0) is None
    for number in range(21):
        limit.accepted(1.0, 10.0 + number)
    assert limit.believe(1.0) is None


# -- waits --


def test_a_long_wait_is_believed_if_the_service_has_answered_nothing() -> None:
    assert AskedWaits().believe(80_000.0, 1.0) == 80_000.0


def test_a_long_wait_that_one_answer_alone_asks_for_is_a_minute() -> None:
    waits = AskedWaits()
    waits.accepted(0.0)
    assert waits.believe(30.0, 1.0) == 30.0
    assert waits.believe(80_000.0, 2.0) == 60.0
    assert waits.believe(80_000.0, 3.0) == 80_000.0, "two answers agree"


def test_a_call_that_was_sent_after_the_refusal_and_answered_makes_the_next_long_wait_the_first() -> None:
    waits = AskedWaits()
    waits.accepted(0.0)
    assert waits.believe(80_000.0, 2.0) == 60.0
    waits.accepted(1.5)  # was on its way already
    assert waits.believe(80_000.0, 3.0) == 80_000.0
    waits.accepted(64.0)
    assert waits.believe(80_000.0, 70.0) == 60.0


# -- usage --


def test_one_usage_moves_the_mean_no_further_than_eight_times_it_would() -> None:
    usual = UsualTokens()
    for _ in range(100):
        usual.add(500)
    usual.add(20_000_000)
    assert usual.mean < 600
    for _ in range(100):
        usual.add(50_000)
    assert usual.mean > 25_000, "larger calls are learnt"


def test_a_call_counts_for_at_most_a_minute_of_the_limit_unless_calls_usually_use_more() -> None:
    usual = UsualTokens()
    assert usual.most(0, 1_000.0) == 1_000.0
    assert usual.most(5_000, 1_000.0) == 40_000.0
    usual.add(5_000)
    assert usual.most(0, 1_000.0) == 40_000.0


# -- a run --


def seconds_with_one_odd_answer(kind: str, **settings: object) -> float:
    """Scores 400 rollouts of a second each with 8 slots; the 50th answer alone is odd. Returns how long it takes."""
    num_calls = 0

    async def judge(response: str) -> float:
        nonlocal num_calls
        num_calls += 1
        is_odd = num_calls == 50
        await asyncio.sleep(1.0)
        rf.report_usage(tokens=20_000_000 if is_odd and kind == "tokens" else 500)
        if is_odd and kind == "429":
            raise rf.RateLimited(retry_after_s=80_000)
        if is_odd and kind == "503":
            raise rf.ServiceError(status=503, retry_after_s=80_000)
        if is_odd and kind.startswith("x-"):
            rf.report_headers({kind: "100" if "tokens" in kind else "1"})
        return 1.0

    async def main() -> float:
        async with rf.RewardAgent(judge, max_concurrency=8, **settings) as agent:
            groups = await agent.submit(numbered(400)).all()
            assert all(group.rewards[0].is_scored for group in groups)
        return asyncio.get_running_loop().time()

    return clock.run(main(), seed=1)


@pytest.mark.parametrize("kind", ["429", "503", "x-ratelimit-limit-requests", "x-ratelimit-limit-tokens"])
def test_one_odd_answer_among_hundreds_costs_a_run_little_more_than_a_minute(kind: str) -> None:
    assert seconds_with_one_odd_answer(kind) < 50 + 75


def test_one_usage_of_twenty_million_tokens_costs_a_run_a_minute_of_its_limit() -> None:
    assert seconds_with_one_odd_answer("tokens", tpm=300_000) < 50 + 75


def test_a_quota_that_is_used_up_stops_the_run_after_two_answers() -> None:
    num_calls = 0

    async def judge(response: str) -> float:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 50:
            raise rf.RateLimited("quota used up", retry_after_s=80_000)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(judge, max_concurrency=1) as agent:
            with pytest.raises(rf.ServiceOutage, match="quota used up"):
                await agent.submit(numbered(400)).all()

    clock.run(main())
    assert num_calls == 52
