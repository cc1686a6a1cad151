"""Which failed calls are made again, when, and how often."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import aiohttp
import pytest
from agent_at_work import now, with_agent
from client_errors import SHAPES, HttpxLike, http_date
from rollouts import numbered
from scoring import score
from simple_rewards import (
    ScriptedReward,
)

import rewardflow as rf
from rewardflow import clock


class TransportError(Exception):
    pass


class TimeoutException(TransportError):
    pass


class ReadTimeout(TimeoutException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        rf.ServiceError("503"),
        rf.Unparsable("no score in the answer"),
        rf.RateLimited(),
        ConnectionResetError("peer"),
        ConnectionRefusedError("nobody there"),
        BrokenPipeError("pipe"),
        TimeoutError("read"),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("half an answer"),
        aiohttp.ServerTimeoutError("read"),
        TransportError("httpx"),
        ReadTimeout("httpx"),
        urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")),
        urllib.error.URLError(TimeoutError("timed out")),
        *[shape(status) for shape in SHAPES for status in (408, 429, 500, 502, 503, 504, 529)],
    ],
    ids=lambda error: f"{type(error).__name__} {error}",
)
def test_what_may_pass_is_asked_again(error: Exception) -> None:
    reward = ScriptedReward(error, error, 1.0)
    (verdict,) = score(reward, numbered(1))
    assert verdict.value == 1.0, verdict.error
    assert verdict.attempts == 3


@pytest.mark.parametrize(
    "error",
    [
        rf.ServiceError("the prompt is too long", retryable=False),
        rf.Unparsable("never a score", retryable=False),
        ValueError("a bug"),
        KeyError("a bug"),
        *[shape(status) for shape in SHAPES for status in (400, 401, 403, 404, 413, 422)],
    ],
    ids=lambda error: f"{type(error).__name__} {error}",
)
def test_what_cannot_pass_is_not_asked_again(error: Exception) -> None:
    reward = ScriptedReward(error, 1.0)
    (verdict,) = score(reward, numbered(1))
    assert verdict.value is None
    assert (verdict.attempts, reward.num_calls) == (1, 1)
    assert str(error).strip("'") in (verdict.error or "")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (rf.ServiceError("x"), "service"),
        (HttpxLike(500), "service"),
        (ConnectionResetError("x"), "service"),
        (TimeoutError("x"), "timeout"),
        (rf.Unparsable("x"), "unparsable"),
        (ZeroDivisionError("x"), "user_error"),
    ],
)
def test_when_attempts_run_out_the_verdict_is_failed_with_the_kind_of_what_went_wrong(error: Any, kind: str) -> None:
    reward = ScriptedReward(error)
    (verdict,) = score(reward, numbered(1), max_attempts=4)
    assert (verdict.value, verdict.kind) == (None, kind)
    assert verdict.attempts == reward.num_calls == (1 if kind == "user_error" else 4)


def test_one_attempt_means_one_attempt() -> None:
    reward = ScriptedReward(rf.ServiceError("x"))
    (verdict,) = score(reward, numbered(1), max_attempts=1)
    assert (verdict.attempts, reward.num_calls) == (1, 1)


def test_a_429_uses_up_no_attempt_but_is_not_asked_for_ever() -> None:
    reward = ScriptedReward(*[rf.RateLimited()] * 8, 1.0)
    (verdict,) = score(reward, numbered(1), max_attempts=2)
    assert (verdict.value, verdict.attempts) == (1.0, 9)
    reward = ScriptedReward(rf.RateLimited())
    (verdict,) = score(reward, numbered(1), max_attempts=2)
    assert (verdict.value, verdict.kind) == (None, "rate_limited")
    assert reward.num_calls == 10


def test_attempts_latency_and_cost_of_a_verdict_cover_all_of_its_attempts() -> None:
    async def pay() -> float:
        rf.report_usage(cost_usd=0.5, tokens=10)
        return 1.0

    async def pay_and_fail() -> float:
        rf.report_usage(cost_usd=0.25, tokens=5)
        raise rf.ServiceError("x", retry_after_s=7)

    reward = ScriptedReward(pay_and_fail, pay, takes_s=2.0)
    (verdict,) = score(reward, numbered(1))
    assert (verdict.attempts, verdict.cost_usd, verdict.tokens) == (2, 0.75, 15)
    assert verdict.latency_s >= 2 + 7 + 2


def test_full_jitter_spreads_retries_over_the_whole_backoff_which_doubles_up_to_its_limit() -> None:
    pauses: dict[int, list[float]] = {0: [], 1: [], 2: [], 3: []}
    for _ in range(20):  # one agent's retry budget would not do
        reward = ScriptedReward(*[rf.ServiceError("x")] * 4, 1.0)
        score(reward, numbered(20), max_attempts=5, backoff_s=10.0, max_backoff_s=25.0, outage_share=None)
        for name, starts in reward.starts.items():
            for number, ended in enumerate(reward.ends[name][:-1]):
                pauses[number].append(starts[number + 1] - ended)
    for number, ceiling_s in enumerate([10.0, 20.0, 25.0, 25.0]):
        assert len(pauses[number]) == 400
        assert 0.0 <= min(pauses[number]) < 0.1 * ceiling_s
        assert 0.9 * ceiling_s < max(pauses[number]) <= ceiling_s
        assert 0.4 * ceiling_s < sum(pauses[number]) / 400 < 0.6 * ceiling_s


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds_is_kept(shape: Any, status: int) -> None:
    reward = ScriptedReward(shape(status, {"Retry-After": "90"}), 1.0)
    score(reward, numbered(1))
    (first, second) = reward.starts["0"]
    assert first + 90 <= second <= first + 90 + 5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_as_a_date_is_kept(shape: Any, status: int) -> None:
    reward = ScriptedReward(shape(status, {"retry-after": http_date(120)}), 1.0)
    score(reward, numbered(1))
    (first, second) = reward.starts["0"]
    assert first + 115 <= second <= first + 126


@pytest.mark.parametrize("value", ["soon", "-5", "", "nan", "inf", pytest.param(http_date(-3600), id="in the past")])
def test_a_retry_after_that_makes_no_sense_does_no_harm(value: str) -> None:
    reward = ScriptedReward(HttpxLike(429, {"Retry-After": value}), 1.0)
    (verdict,) = score(reward, numbered(1))
    assert verdict.value == 1.0
    assert reward.starts["0"][1] <= 60


@pytest.mark.parametrize(
    "limited",
    [
        rf.RateLimited(retry_after_s=30),
        rf.RateLimited(headers={"Retry-After": "30"}),
        HttpxLike(429, {"Retry-After": "30"}),
    ],
    ids=["by hand", "by headers", "by shape"],
)
def test_a_429_with_retry_after_stops_all_sending_until_then(limited: Exception) -> None:
    starts: list[float] = []

    async def reward(solution_str: str) -> float:
        starts.append(now())
        await asyncio.sleep(1)
        if len(starts) == 3:
            raise limited
        return 1.0

    verdicts = score(reward, numbered(40), max_concurrency=2)
    assert all(verdict.is_scored for verdict in verdicts)
    told_at = starts[2] + 1
    assert [start for start in starts if told_at < start < told_at + 30] == []


@pytest.mark.parametrize("home", ["coroutine", "thread"])
def test_one_line_says_that_this_was_a_429(home: str) -> None:
    """From a thread, too; from a process below."""
    calls: list[float] = []

    async def in_coroutine(solution_str: str) -> float:
        calls.append(now())
        if len(calls) == 1:
            raise rf.RateLimited(retry_after_s=7)
        return 1.0

    def in_thread(solution_str: str) -> float:
        calls.append(0.0)
        if len(calls) == 1:
            raise rf.RateLimited(retry_after_s=7)
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        (one,) = await agent.submit(numbered(1)).all()
        assert one.rewards[0].is_scored
        assert 7 <= now() <= 9

    with_agent(use, in_coroutine if home == "coroutine" else in_thread, max_concurrency=1)
    assert len(calls) == 2


def test_retries_stay_within_their_share_of_first_attempts_and_a_small_reserve() -> None:
    reward = ScriptedReward(rf.ServiceError("x"))
    verdicts = score(reward, numbered(2000), max_attempts=5, retry_budget=0.1, outage_share=None, max_concurrency=50)
    assert len(verdicts) == 2000
    num_retries = reward.num_calls - 2000
    assert 100 <= num_retries <= 0.1 * 2000 + 150


def test_a_share_of_failures_well_below_the_retry_budget_is_retried_even_if_all_calls_were_out_together() -> None:
    """A quarter of 2000 first attempts may be asked again; a blip that hits a tenth of them must cost no verdict."""
    attempts: Counter[str] = Counter()

    async def reward(solution_str: str) -> float:
        attempts[solution_str] += 1
        await asyncio.sleep(1)
        if int(solution_str) % 10 == 0 and attempts[solution_str] == 1:
            raise rf.ServiceError("a blip")
        return 1.0

    verdicts = score(reward, numbered(2000), max_concurrency=2000, retry_budget=0.25)
    assert [verdict.error for verdict in verdicts if not verdict.is_scored] == []


def test_no_retry_budget_means_no_retries_and_the_verdict_says_so() -> None:
    reward = ScriptedReward(rf.ServiceError("x"), 1.0)
    (verdict,) = score(reward, numbered(1), retry_budget=0)
    assert (verdict.value, reward.num_calls) == (None, 1)
    assert "budget" in (verdict.error or "")


def starts_of(judge_raises: Exception, headers: dict[str, str] | None = None, count: int = 3) -> list[float]:
    """When calls start if the first of them ends like this."""
    starts: list[float] = []

    async def judge(solution_str: str) -> float:
        starts.append(asyncio.get_running_loop().time())
        if len(starts) == 1:
            if headers:
                rf.report_headers(headers)
            raise judge_raises
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(judge, max_concurrency=1) as agent:
            await agent.submit(rf.Rollout(group_id=str(i), response="") for i in range(count)).all()

    clock.run(main())
    return starts


def test_a_retry_after_that_was_reported_as_a_header_is_obeyed() -> None:
    first, second, *_ = starts_of(rf.RateLimited(), {"Retry-After": "7"})
    assert second - first >= 7


def test_a_503_with_retry_after_stops_the_whole_account() -> None:
    first, second, *_ = starts_of(rf.ServiceError("busy", status=503, retry_after_s=20))
    assert second - first >= 20
