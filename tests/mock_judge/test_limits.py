"""Limits, at times that the tests choose."""

from __future__ import annotations

import math

import pytest

from rewardflow.mock_judge.limits import Limits, Refusal
from rewardflow.mock_judge.settings import MockJudgeSettings
from rewardflow.reward.limits.rate_limit_headers import read_limits


def num_admitted(limits: Limits, times_s: list[float], tokens: int = 1) -> int:
    return sum(limits.admit(time_s, tokens) is None for time_s in times_s)


def every(interval_s: float, count: int) -> list[float]:
    return [number * interval_s for number in range(count)]


def test_without_limits_everything_is_let_in_and_nothing_is_said() -> None:
    limits = Limits(MockJudgeSettings())
    assert num_admitted(limits, [0.0] * 1000, tokens=10**9) == 1000
    assert limits.headers(0.0) == {}


def test_a_rate_lets_in_its_burst_and_then_what_it_allows() -> None:
    limits = Limits(MockJudgeSettings(rpm=600, burst_s=1))
    assert num_admitted(limits, [0.0] * 100) == 10
    assert num_admitted(limits, [1.0] * 100) == 10
    assert num_admitted(limits, [1000.0] * 100) == 10


def test_calls_at_the_rate_are_never_refused() -> None:
    limits = Limits(MockJudgeSettings(rpm=600, burst_s=0.001))
    assert num_admitted(limits, every(0.1, 5000)) == 5000


def test_a_refused_call_takes_nothing() -> None:
    limits = Limits(MockJudgeSettings(rpm=60, tpm=6000, burst_s=1))
    assert limits.admit(0.0, 100) is None
    assert [limits.admit(0.5, 100) for _ in range(10)] == [Refusal("requests", 0.5)] * 10
    assert limits.admit(1.0, 100) is None


def test_a_client_that_waits_as_long_as_it_was_told_is_let_in() -> None:
    limits = Limits(MockJudgeSettings(rpm=7, burst_s=0.001))
    now_s = 12345.678
    for _ in range(100):
        assert limits.admit(now_s, 1) is None
        refusal = limits.admit(now_s, 1)
        assert refusal is not None
        assert refusal.retry_after_s is not None
        now_s += refusal.retry_after_s


def test_a_limit_may_keep_to_itself_when_to_come_again_and_what_it_is() -> None:
    limits = Limits(MockJudgeSettings(rpm=60, burst_s=1, says_retry_after=False, says_limits=False))
    limits.admit(0.0, 1)
    assert limits.admit(0.0, 1) == Refusal("requests", None)
    assert limits.headers(0.0) == {}


def test_tokens_are_limited_and_what_was_not_used_is_given_back() -> None:
    limits = Limits(MockJudgeSettings(tpm=6000, burst_s=10))
    assert limits.admit(0.0, 900) is None
    assert limits.admit(0.0, 200) == Refusal("tokens", 1.0)
    limits.leave(0.0, 800)
    assert limits.admit(0.0, 900) is None


def test_a_call_larger_than_the_bucket_is_let_in_when_it_is_full_and_paid_for_afterwards() -> None:
    limits = Limits(MockJudgeSettings(tpm=6000, burst_s=1))
    assert limits.admit(0.0, 1000) is None
    assert limits.admit(9.0, 100) == Refusal("tokens", pytest.approx(1.0))
    assert limits.admit(10.0, 100) is None


def test_calls_at_once_are_limited_until_one_leaves() -> None:
    limits = Limits(MockJudgeSettings(max_concurrency=2))
    assert num_admitted(limits, [0.0] * 5) == 2
    assert limits.admit(0.0, 1) == Refusal("concurrency", None)
    limits.leave(0.0, 0)
    assert num_admitted(limits, [0.0] * 5) == 1


def test_a_scaled_minute_is_shorter_and_the_headers_are_true_on_the_wall() -> None:
    limits = Limits(MockJudgeSettings(rpm=600, tpm=60_000, scale=0.01))
    assert num_admitted(limits, [0.0] * 1000) == 600
    assert num_admitted(limits, [0.1] * 1000) == 100
    announced = read_limits(limits.headers(0.1))
    assert (announced.rpm, announced.tpm) == (60_000, 6_000_000)


def test_the_headers_say_what_is_left_and_when_it_is_whole_again() -> None:
    limits = Limits(MockJudgeSettings(rpm=600))
    for _ in range(60):
        limits.admit(5.0, 1)
    assert limits.headers(5.0) == {
        "x-ratelimit-limit-requests": "600",
        "x-ratelimit-remaining-requests": "540",
        "x-ratelimit-reset-requests": "6.000s",
    }
    assert math.isclose(float(limits.headers(8.0)["x-ratelimit-reset-requests"].rstrip("s")), 3.0)
