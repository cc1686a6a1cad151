"""How the agent governs its calls: retries, pace, hedges, endpoints, outages, money and time, seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import email.utils
import itertools
import logging
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from agent_at_work import now, with_agent
from aiohttp import web

import rewardflow as rf
from rewardflow import clock


def singles(count: int, step: int = 0, prefix: str = "") -> list[rf.Rollout]:
    return [rf.Rollout(group_id=f"{prefix}{i}", response=str(i), step=step) for i in range(count)]


def score(reward: Any, rollouts: list[rf.Rollout], **options: Any) -> list[rf.Reward]:
    """Score groups of one on the jumping clock; one reward for each, in order."""

    async def main() -> list[rf.Reward]:
        async with rf.RewardAgent(reward, **options) as agent:
            return [one.rewards[0] for one in await agent.submit(rollouts).all()]

    return clock.run(main())


class Scripted:
    """Does in turn what it was told for each response, and remembers when each attempt started and ended.

    A number is a score, an exception is raised, anything else is called; the last one goes on for ever.
    """

    def __init__(self, *turns: Any, takes_s: float = 0.0) -> None:
        self.turns = turns
        self.takes_s = takes_s
        self.starts: dict[str, list[float]] = {}
        self.ends: dict[str, list[float]] = {}
        self.endpoints: dict[str, list[str | None]] = {}

    async def compute_score(self, solution_str: str) -> Any:
        starts = self.starts.setdefault(solution_str, [])
        starts.append(now())
        call = rf.current_call()
        assert call is not None
        self.endpoints.setdefault(solution_str, []).append(call.endpoint)
        turn = self.turns[min(len(starts), len(self.turns)) - 1]
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.ends.setdefault(solution_str, []).append(now())
        if isinstance(turn, BaseException):
            raise turn
        return await turn() if callable(turn) else turn

    @property
    def num_calls(self) -> int:
        return sum(map(len, self.starts.values()))


# -- the shapes of real clients' exceptions ----------------------------------------------------------------------------


class HttpxLike(Exception):
    """httpx.HTTPStatusError: everything is on the response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


class OpenAILike(Exception):
    """openai.APIStatusError: a status of its own, headers on the response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"Error code: {status}")
        self.status_code = status
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


class AiohttpLike(Exception):
    """aiohttp.ClientResponseError: all of its own."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"{status}")
        self.status = status
        self.headers = headers


SHAPES = [HttpxLike, OpenAILike, AiohttpLike]


def http_date(seconds_from_now: float) -> str:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds_from_now)
    return email.utils.format_datetime(moment, usegmt=True)


# -- retry by kind -----------------------------------------------------------------------------------------------------


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
    reward = Scripted(error, error, 1.0)
    (verdict,) = score(reward, singles(1))
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
    reward = Scripted(error, 1.0)
    (verdict,) = score(reward, singles(1))
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
    reward = Scripted(error)
    (verdict,) = score(reward, singles(1), max_attempts=4)
    assert (verdict.value, verdict.kind) == (None, kind)
    assert verdict.attempts == reward.num_calls == (1 if kind == "user_error" else 4)


def test_one_attempt_means_one_attempt() -> None:
    reward = Scripted(rf.ServiceError("x"))
    (verdict,) = score(reward, singles(1), max_attempts=1)
    assert (verdict.attempts, reward.num_calls) == (1, 1)


def test_a_429_uses_up_no_attempt_but_is_not_asked_for_ever() -> None:
    reward = Scripted(*[rf.RateLimited()] * 8, 1.0)
    (verdict,) = score(reward, singles(1), max_attempts=2)
    assert (verdict.value, verdict.attempts) == (1.0, 9)
    reward = Scripted(rf.RateLimited())
    (verdict,) = score(reward, singles(1), max_attempts=2)
    assert (verdict.value, verdict.kind) == (None, "rate_limited")
    assert reward.num_calls == 10


def test_attempts_latency_and_cost_of_a_verdict_cover_all_of_its_attempts() -> None:
    async def pay() -> float:
        rf.report_usage(cost_usd=0.5, tokens=10)
        return 1.0

    async def pay_and_fail() -> float:
        rf.report_usage(cost_usd=0.25, tokens=5)
        raise rf.ServiceError("x", retry_after_s=7)

    reward = Scripted(pay_and_fail, pay, takes_s=2.0)
    (verdict,) = score(reward, singles(1))
    assert (verdict.attempts, verdict.cost_usd, verdict.tokens) == (2, 0.75, 15)
    assert verdict.latency_s >= 2 + 7 + 2


def test_full_jitter_spreads_retries_over_the_whole_backoff_which_doubles_up_to_its_limit() -> None:
    pauses: dict[int, list[float]] = {0: [], 1: [], 2: [], 3: []}
    for _ in range(20):  # one agent's retry budget would not do
        reward = Scripted(*[rf.ServiceError("x")] * 4, 1.0)
        score(reward, singles(20), max_attempts=5, backoff_s=10.0, max_backoff_s=25.0, outage_share=None)
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
    reward = Scripted(shape(status, {"Retry-After": "90"}), 1.0)
    score(reward, singles(1))
    (first, second) = reward.starts["0"]
    assert first + 90 <= second <= first + 90 + 5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_as_a_date_is_kept(shape: Any, status: int) -> None:
    reward = Scripted(shape(status, {"retry-after": http_date(120)}), 1.0)
    score(reward, singles(1))
    (first, second) = reward.starts["0"]
    assert first + 115 <= second <= first + 126


@pytest.mark.parametrize("value", ["soon", "-5", "", "nan", "inf", http_date(-3600)])
def test_a_retry_after_that_makes_no_sense_does_no_harm(value: str) -> None:
    reward = Scripted(HttpxLike(429, {"Retry-After": value}), 1.0)
    (verdict,) = score(reward, singles(1))
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

    verdicts = score(reward, singles(40), max_concurrency=2)
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
        (one,) = await agent.submit(singles(1)).all()
        assert one.rewards[0].is_scored
        assert 7 <= now() <= 9

    with_agent(use, in_coroutine if home == "coroutine" else in_thread, max_concurrency=1)
    assert len(calls) == 2


def test_retries_stay_within_their_share_of_first_attempts_and_a_small_reserve() -> None:
    reward = Scripted(rf.ServiceError("x"))
    verdicts = score(reward, singles(2000), max_attempts=5, retry_budget=0.1, outage_share=None, max_concurrency=50)
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

    verdicts = score(reward, singles(2000), max_concurrency=2000, retry_budget=0.25)
    assert [verdict.error for verdict in verdicts if not verdict.is_scored] == []


def test_no_retry_budget_means_no_retries_and_the_verdict_says_so() -> None:
    reward = Scripted(rf.ServiceError("x"), 1.0)
    (verdict,) = score(reward, singles(1), retry_budget=0)
    assert (verdict.value, reward.num_calls) == (None, 1)
    assert "budget" in (verdict.error or "")


def test_a_set_rate_is_never_passed() -> None:
    reward = Scripted(1.0, takes_s=3.0)
    score(reward, singles(50), rpm=60, max_concurrency=50)
    starts = sorted(start for all_starts in reward.starts.values() for start in all_starts)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert min(gaps) >= 1.0 - 1e-6
    assert max(gaps) <= 1.1


def test_a_set_token_rate_holds_by_what_the_service_reports() -> None:
    async def pay() -> float:
        rf.report_usage(tokens=1000)
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(singles(120)).all()
        assert 18 * 60 <= now() <= 22 * 60  # six calls of 1000 tokens a minute

    with_agent(use, Scripted(pay, takes_s=1.0), tpm=6000, max_concurrency=1)


def test_an_estimate_of_tokens_that_raises_fails_its_rollouts_instead_of_hanging() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return 1.0

        def estimate_tokens(self, rollout: rf.Rollout) -> int:
            if rollout.response == "1":
                raise KeyError("tokenizer")
            return 10

    async def use(agent: rf.RewardAgent) -> None:
        async with asyncio.timeout(3600):
            groups = await agent.submit(singles(3)).all()
        assert [one.rewards[0].value is None for one in groups] in ([False, True, False], [False, False, False])

    with_agent(use, Judge, tpm=100_000)


# -- time --------------------------------------------------------------------------------------------------------------


def test_an_attempt_that_takes_too_long_is_cancelled_and_its_slot_is_used_by_the_next() -> None:
    cancelled: list[float] = []

    async def reward(solution_str: str) -> float:
        try:
            await asyncio.sleep(1000 if solution_str == "0" else 1)
        except asyncio.CancelledError:
            cancelled.append(now())
            raise
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        groups = await agent.submit(singles(3)).all()
        verdicts = [one.rewards[0] for one in groups]
        assert [verdict.kind for verdict in verdicts] == ["timeout", None, None]
        assert "10" in (verdicts[0].error or "")
        assert cancelled == [10.0]
        assert now() == 12.0

    with_agent(use, reward, max_concurrency=1, timeout_s=10, max_attempts=1)


def test_the_time_limit_of_a_verdict_covers_all_attempts_from_the_first_start() -> None:
    reward = Scripted(1.0, takes_s=1000)
    (verdict,) = score(reward, singles(1), timeout_s=10, verdict_timeout_s=25, max_attempts=100)
    assert verdict.kind == "timeout"
    assert 20 <= verdict.latency_s <= 25
    assert reward.num_calls <= 4


def test_waiting_for_a_slot_does_not_count_against_the_time_limit_of_a_verdict() -> None:
    reward = Scripted(1.0, takes_s=8)
    verdicts = score(reward, singles(20), verdict_timeout_s=10, max_concurrency=1)
    assert all(verdict.is_scored for verdict in verdicts)
    assert {verdict.latency_s for verdict in verdicts} == {8.0}


def test_the_time_limit_of_a_verdict_holds_also_while_its_retry_waits_for_the_pace() -> None:
    """Another call's Retry-After stops all sending for long; what began before still gets its verdict in time."""

    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        if solution_str == "0":
            raise rf.ServiceError("x")
        raise rf.RateLimited(retry_after_s=1000)

    verdicts = score(reward, singles(2), verdict_timeout_s=20, backoff_s=5)
    assert verdicts[0].value is None
    assert verdicts[0].latency_s <= 20 + 1


@pytest.mark.parametrize("catch", [asyncio.CancelledError, BaseException])
def test_a_coroutine_that_swallows_cancellation_and_goes_on_still_gives_its_slot_back(
    catch: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async def stubborn(solution_str: str) -> float:
        while solution_str == "0":
            try:
                await asyncio.sleep(1000)
            except catch as error:
                if isinstance(error, GeneratorExit):
                    raise
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        groups = await agent.submit(singles(3)).all()
        assert [one.rewards[0].kind for one in groups] == ["timeout", None, None]
        assert now() <= 10 + 5
        assert agent.statistics().in_flight == 0

    with caplog.at_level(logging.WARNING, "rewardflow"):
        with_agent(use, stubborn, max_concurrency=1, timeout_s=10, max_attempts=1)
    assert "stubborn" in caplog.text


def test_a_number_made_up_by_a_coroutine_that_was_cancelled_is_not_a_verdict() -> None:
    """`try: ... except: return 0.0` is common in reward code; a call that ran out of time has no score all the same."""

    async def reward(solution_str: str) -> float:
        try:
            await asyncio.sleep(1000)
        except BaseException:
            return 0.0
        return 1.0

    (verdict,) = score(reward, singles(1), timeout_s=10, max_attempts=1)
    assert (verdict.value, verdict.kind) == (None, "timeout")


def test_a_reward_that_cleans_up_when_it_is_cancelled_may_await_while_it_does() -> None:
    cleaned: list[float] = []

    async def reward(solution_str: str) -> float:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.5)
            cleaned.append(now())
        return 1.0

    (verdict,) = score(reward, singles(1), timeout_s=10, max_attempts=1)
    assert verdict.kind == "timeout"
    assert cleaned == [10.5]


def test_a_timeout_of_the_rewards_own_is_told_from_ours_but_is_a_timeout_too() -> None:
    async def reward(solution_str: str) -> float:
        async with asyncio.timeout(3):
            await asyncio.sleep(1000)
        return 1.0

    (verdict,) = score(reward, singles(1), timeout_s=10, max_attempts=1)
    assert (verdict.kind, verdict.latency_s) == ("timeout", 3.0)


def test_a_timed_out_thread_frees_its_slot_and_is_counted_and_replaced() -> None:
    release = threading.Event()

    def reward(solution_str: str) -> float:
        if int(solution_str) < 3:
            release.wait(30)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=1, timeout_s=0.1, max_attempts=1) as agent:
            groups = await agent.submit(singles(6)).all()
            assert [one.rewards[0].kind for one in groups] == ["timeout"] * 3 + [None] * 3
            (workers,) = agent.statistics().workers.values()
            assert (workers.abandoned, workers.replaced) == (3, 3)
            assert agent.statistics().in_flight == 0

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_stuck_threads_are_replaced_up_to_the_cap_and_then_the_agent_gives_up_with_the_cause() -> None:
    release = threading.Event()

    def reward(solution_str: str) -> float:
        release.wait(30)
        return 1.0

    async def main() -> None:
        options: dict[str, Any] = {"max_abandoned": 2, "outage_give_up_s": 0.3}
        with pytest.raises(rf.ServiceOutage) as caught:
            async with rf.RewardAgent(reward, max_concurrency=2, timeout_s=0.05, max_attempts=1, **options) as agent:
                await agent.submit(singles(20)).all()
        groups = {one.group_id: one for one in caught.value.groups}
        assert len(groups) == 20
        assert Counter(one.rewards[0].kind for one in groups.values()) == {"timeout": 4, "outage": 16}

    try:
        asyncio.run(main())
    finally:
        release.set()


HANGING = """
import os, time
import rewardflow as rf

def compute_score(solution_str, extra_info):
    rf.report_usage(cost_usd=0.125, tokens=7)
    if solution_str == "hang":
        time.sleep(600)
    if solution_str == "limited" and not os.path.exists(extra_info["flag"]):
        open(extra_info["flag"], "w").close()
        raise rf.RateLimited("slow down", retry_after_s=0.01)
    if solution_str == "die":
        os._exit(3)
    return {"score": 1.0, "pid": os.getpid(), "endpoint": rf.current_call().endpoint}
"""


def test_in_processes_a_hung_call_is_killed_and_usage_and_429s_and_endpoints_come_through(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(HANGING)
    responses = ["fine", "hang", "limited", "fine", "die", "fine"]
    rollouts = [
        rf.Rollout(group_id=str(i), response=response, extra_info={"flag": str(tmp_path / "flag")})
        for i, response in enumerate(responses)
    ]

    async def main() -> None:
        options: dict[str, Any] = {"workers": "process", "max_concurrency": 1, "endpoints": ["here"], "rpm": None}
        async with rf.RewardAgent(f"{tmp_path}/judge.py", timeout_s=1, max_attempts=1, **options) as agent:
            groups = await agent.submit(rollouts).all()
            verdicts = [one.rewards[0] for one in groups]
            assert [verdict.kind for verdict in verdicts] == [None, "timeout", None, None, "service", None], verdicts
            assert verdicts[2].attempts == 2
            assert verdicts[0].extras["endpoint"] == "here"
            assert verdicts[0].extras["pid"] != verdicts[3].extras["pid"], "the hung process was killed and replaced"
            assert (verdicts[0].cost_usd, verdicts[0].tokens) == (0.125, 7)
            (workers,) = agent.statistics().workers.values()
            assert (workers.kind, workers.killed >= 1) == ("process", True)
            assert agent.statistics().ledger.spent_usd >= 3 * 0.125
            assert agent.statistics().in_flight == 0

    asyncio.run(main())


TELLING = """
import rewardflow as rf

def compute_score(solution_str):
    rf.report_headers({"X-RateLimit-Limit-Requests": "6000", "Authorization": "secret"})
    return 1.0
"""


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_limits_that_are_told_from_a_thread_or_a_process_teach_the_pace(tmp_path: Path, workers: str) -> None:
    (tmp_path / "judge.py").write_text(TELLING)

    async def main() -> None:
        options: dict[str, Any] = {"workers": workers, "max_concurrency": 1}
        async with rf.RewardAgent(f"{tmp_path}/judge.py", **options) as agent:
            (one,) = await agent.submit(singles(1)).all()
            assert one.rewards[0].is_scored, one.rewards[0].error
            assert agent.statistics().accounts[0].governors.pace.rpm == pytest.approx(6000, rel=0.2)

    asyncio.run(main())


def test_usage_is_counted_the_same_from_a_coroutine_and_a_thread() -> None:
    async def in_coroutine(solution_str: str) -> float:
        await asyncio.sleep(0)
        rf.report_usage(cost_usd=0.002, tokens=812)
        return 1.0

    def in_thread(solution_str: str) -> float:
        rf.report_usage(cost_usd=0.002, tokens=812)
        return 1.0

    async def nested(solution_str: str) -> float:
        """Helpers of the reward, in tasks and threads of its own, are inside its call."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(in_coroutine(solution_str))
        await asyncio.to_thread(in_thread, solution_str)
        return 1.0

    for reward, times in ((in_coroutine, 1), (in_thread, 1), (nested, 2)):

        async def main(reward: Any = reward, times: int = times) -> None:
            async with rf.RewardAgent(reward, max_concurrency=4) as agent:
                groups = await agent.submit([*singles(3), *singles(2, step=1)]).all()
                assert {one.rewards[0].cost_usd for one in groups} == {0.002 * times}
                assert {one.rewards[0].tokens for one in groups} == {812 * times}
                ledger = agent.statistics().ledger
                assert ledger.spent_usd == pytest.approx(0.01 * times)
                assert ledger.tokens == 812 * 5 * times
                assert ledger.by_step_usd == pytest.approx({0: 0.006 * times, 1: 0.004 * times})

        asyncio.run(main())


def test_a_call_that_failed_or_timed_out_is_paid_for_all_the_same() -> None:
    async def reward(solution_str: str) -> float:
        rf.report_usage(cost_usd=1.0)
        if solution_str == "0":
            raise ValueError("no score")
        await asyncio.sleep(1000)
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        groups = await agent.submit(singles(2)).all()
        assert [one.rewards[0].cost_usd for one in groups] == [1.0, 1.0]
        assert agent.statistics().ledger.spent_usd == 2.0

    with_agent(use, reward, timeout_s=10, max_attempts=1)


def test_outside_a_call_usage_and_headers_may_be_reported_in_vain() -> None:
    assert rf.current_call() is None
    rf.report_usage(cost_usd=1.0, tokens=3)
    rf.report_headers({"x-ratelimit-limit-requests": "10"})


@pytest.mark.parametrize("usage", [{"cost_usd": -1.0}, {"cost_usd": float("nan")}, {"tokens": -1}])
def test_usage_that_makes_no_sense_is_an_error_of_the_reward(usage: dict[str, float]) -> None:
    async def reward(solution_str: str) -> float:
        rf.report_usage(**usage)  # type: ignore[arg-type]
        return 1.0

    (verdict,) = score(reward, singles(1))
    assert verdict.kind == "user_error"


def test_an_async_reward_that_blocks_the_loop_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    async def this_one_blocks(solution_str: str) -> float:
        time.sleep(0.6)  # noqa: ASYNC251  what the test is about
        return 1.0

    with caplog.at_level(logging.WARNING, "rewardflow"):
        score(this_one_blocks, singles(2))
    told = [record.getMessage() for record in caplog.records if "this_one_blocks" in record.getMessage()]
    assert len(told) == 1
    assert "block" in told[0]


# -- hedging -----------------------------------------------------------------------------------------------------------


class Straggling:
    """Takes a second, except for the first attempt of the responses it is told: those take long."""

    def __init__(self, slow: set[str], slow_s: float = 1000.0) -> None:
        self.slow = slow
        self.slow_s = slow_s
        self.attempts: Counter[str] = Counter()
        self.cancelled: list[tuple[str, float]] = []
        self.endpoints: dict[str, list[str | None]] = {}
        self.out = self.most = 0

    async def compute_score(self, solution_str: str) -> float:
        self.attempts[solution_str] += 1
        attempt = self.attempts[solution_str]
        call = rf.current_call()
        assert call is not None
        self.endpoints.setdefault(solution_str, []).append(call.endpoint)
        rf.report_usage(cost_usd=1.0)
        self.out += 1
        self.most = max(self.most, self.out)
        try:
            await asyncio.sleep(self.slow_s if solution_str in self.slow and attempt == 1 else 1.0)
        except asyncio.CancelledError:
            self.cancelled.append((solution_str, now()))
            raise
        finally:
            self.out -= 1
        return float(attempt)


def test_a_hedge_that_is_faster_wins_and_the_loser_is_cancelled_and_gives_its_slot_back() -> None:
    reward = Straggling({"slow"})

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(singles(40)).all()
        began_s = now()
        (one,) = await agent.submit([rf.Rollout(group_id="slow", response="slow")]).all()
        assert one.rewards[0].value == 2.0, "the second attempt answered"
        assert now() - began_s <= 4
        await asyncio.sleep(0.1)
        assert reward.cancelled == [("slow", pytest.approx(now(), abs=1))]
        (account,) = agent.statistics().accounts
        assert (account.hedges, account.hedges_won, account.in_flight) == (1, 1, 0)
        assert agent.statistics().ledger.spent_usd == 42.0, "the loser was paid for, too"

    with_agent(use, reward, hedge_quantile=0.9, timeout_s=5000)


def test_a_hedge_that_loses_is_cancelled_and_changes_nothing() -> None:
    class Judge(Straggling):
        async def compute_score(self, solution_str: str) -> float:
            if solution_str == "slow" and self.attempts["slow"] == 1:
                self.attempts["slow"] += 1
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    self.cancelled.append((solution_str, now()))
                    raise
            return await super().compute_score(solution_str)

    reward = Judge({"slow"}, slow_s=20.0)

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(singles(40)).all()
        began_s = now()
        (one,) = await agent.submit([rf.Rollout(group_id="slow", response="slow")]).all()
        assert (one.rewards[0].value, now() - began_s) == (1.0, 20.0)
        await asyncio.sleep(0.1)
        assert [name for name, _ in reward.cancelled] == ["slow"]
        (account,) = agent.statistics().accounts
        assert (account.hedges, account.hedges_won, account.in_flight) == (1, 0, 0)

    with_agent(use, reward, hedge_quantile=0.9, timeout_s=5000)


def test_hedges_are_at_most_their_share_of_calls() -> None:
    reward = Straggling({str(i) for i in range(100, 400)}, slow_s=30.0)

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(singles(100)).all()
        await agent.submit([rollout for rollout in singles(400) if int(rollout.response) >= 100]).all()
        (account,) = agent.statistics().accounts
        assert 0 < account.hedges <= 0.05 * account.calls

    with_agent(use, reward, hedge_quantile=0.9, hedge_share=0.05, max_concurrency=50, retry_budget=10.0)


def test_hedges_never_pass_the_limit_on_concurrency() -> None:
    reward = Straggling({str(i) for i in range(0, 200, 3)}, slow_s=30.0)
    score(reward, singles(200), hedge_quantile=0.5, hedge_share=1.0, max_concurrency=7)
    assert reward.most == 7


def test_a_hedge_goes_to_another_endpoint_if_there_is_one() -> None:
    reward = Straggling({"slow"})

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(singles(40)).all()
        await agent.submit([rf.Rollout(group_id="slow", response="slow")]).all()
        assert sorted(reward.endpoints["slow"], key=str) == ["a", "b"]

    with_agent(use, reward, hedge_quantile=0.9, endpoints=["a", "b"], timeout_s=5000)


def test_without_hedge_quantile_nothing_is_asked_twice() -> None:
    reward = Straggling({str(i) for i in range(50, 60)}, slow_s=50.0)
    score(reward, singles(60))
    assert set(reward.attempts.values()) == {1}


def test_when_original_and_hedge_both_fail_there_is_one_failed_verdict() -> None:
    class Judge(Straggling):
        async def compute_score(self, solution_str: str) -> float:
            value = await super().compute_score(solution_str)
            if solution_str == "slow":
                raise ValueError("both")
            return value

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(singles(40)).all()
        (one,) = await agent.submit([rf.Rollout(group_id="slow", response="slow")]).all()
        assert one.rewards[0].kind == "user_error"
        await asyncio.sleep(100)
        assert agent.statistics().in_flight == 0
        assert agent.statistics().verdicts.delivered == 41

    with_agent(use, Judge({"slow"}, slow_s=30), hedge_quantile=0.9, timeout_s=5000)


# -- endpoints ---------------------------------------------------------------------------------------------------------


class Fleet:
    """Endpoints that can be broken and mended; remembers what each was asked."""

    def __init__(self, *broken: str, takes_s: float = 1.0) -> None:
        self.broken = set(broken)
        self.takes_s = takes_s
        self.calls: list[tuple[float, str]] = []

    async def compute_score(self, solution_str: str) -> float:
        call = rf.current_call()
        assert call is not None
        assert call.endpoint is not None
        self.calls.append((now(), call.endpoint))
        await asyncio.sleep(self.takes_s)
        if call.endpoint in self.broken:
            raise rf.ServiceError(f"{call.endpoint} is down")
        return 1.0

    def num_calls(self, endpoint: str, since_s: float = 0.0) -> int:
        return sum(1 for at, name in self.calls if name == endpoint and at >= since_s)


def test_the_work_is_shared_among_all_endpoints() -> None:
    fleet = Fleet()
    score(fleet, singles(90), endpoints=["a", "b", "c"], max_concurrency=9)
    assert [fleet.num_calls(name) for name in "abc"] == [30, 30, 30]


def test_a_retry_goes_to_another_endpoint() -> None:
    reward = Scripted(rf.ServiceError("x"), 1.0)
    score(reward, singles(20), endpoints=["a", "b"], max_concurrency=4)
    assert all(first != second for first, second in reward.endpoints.values())


def test_when_one_endpoint_is_down_the_others_do_its_work_and_it_is_hardly_asked() -> None:
    fleet = Fleet("b")
    verdicts = score(fleet, singles(400), endpoints=["a", "b"], max_concurrency=10)
    assert all(verdict.is_scored for verdict in verdicts)
    assert fleet.num_calls("b") <= 60


def test_an_endpoint_that_is_back_is_found_by_probes_and_used_again() -> None:
    fleet = Fleet("b")

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(singles(300, step=0)).all()
        states = {one.name: one.breaker.state for one in agent.statistics().accounts[0].governors.endpoints}
        assert states["a"] == "closed"
        assert states["b"] != "closed"
        fleet.broken.clear()
        await agent.submit(singles(300, step=1)).all()
        began_s = now()
        await agent.submit(singles(200, step=2)).all()
        assert fleet.num_calls("b", began_s) >= 80
        states = {one.name: one.breaker.state for one in agent.statistics().accounts[0].governors.endpoints}
        assert states == {"a": "closed", "b": "closed"}

    with_agent(use, fleet, endpoints=["a", "b"], max_concurrency=10)


# -- the outage guard --------------------------------------------------------------------------------------------------


class Service:
    """One service that is up or down."""

    def __init__(self, *, is_up: bool = True, takes_s: float = 1.0) -> None:
        self.is_up = is_up
        self.takes_s = takes_s
        self.calls: list[float] = []

    async def compute_score(self, solution_str: str) -> float:
        self.calls.append(now())
        await asyncio.sleep(self.takes_s)
        if not self.is_up:
            raise rf.ServiceError("503 from judge.example")
        return 1.0

    def num_calls(self, since_s: float, until_s: float) -> int:
        return sum(1 for at in self.calls if since_s <= at < until_s)


def test_in_an_outage_sending_stops_but_for_probes_and_goes_on_when_the_service_is_back() -> None:
    service = Service()

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(2000))
        await asyncio.sleep(10)
        service.is_up = False
        await asyncio.sleep(20)
        assert service.num_calls(30, 300) == 0  # nothing has happened there yet
        await asyncio.sleep(270)
        assert 2 <= service.num_calls(30, 300) <= 60, "a probe now and then, no more"
        service.is_up = True
        groups = await ticket.all()
        assert all(one.rewards[0].is_scored for one in groups), Counter(one.rewards[0].kind for one in groups)
        assert now() <= 300 + 60 + 200

    with_agent(use, service, max_concurrency=20)


def test_probes_go_out_one_at_a_time() -> None:
    out = most = 0
    is_down_since = 50.0

    async def reward(solution_str: str) -> float:
        nonlocal out, most
        out += 1
        if now() > is_down_since + 30:
            most = max(most, out)
        await asyncio.sleep(1)
        out -= 1
        if is_down_since < now() < 400:
            raise rf.ServiceError("down")
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(2000))
        await asyncio.sleep(390)
        assert most == 1
        await ticket.all()

    with_agent(use, reward, max_concurrency=10)


def test_an_outage_that_lasts_too_long_ends_with_an_error_that_names_cause_and_remedy_and_loses_nothing() -> None:
    service = Service()

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(100))
        await asyncio.sleep(2.5)
        service.is_up = False
        taken: list[rf.ScoredGroup] = []

        async def consume() -> None:
            async for one in ticket:
                taken.append(one)

        with pytest.raises(rf.ServiceOutage) as caught:
            await consume()
        message = str(caught.value)
        assert "503 from judge.example" in message, "the cause"
        assert "300" in message
        assert "journal" in message, "the remedy"
        assert 300 <= now() <= 340
        stranded = caught.value.groups
        assert len({one.group_id for one in [*taken, *stranded]}) == len(taken) + len(stranded) == 100
        assert {one.rewards[0].kind for one in stranded} == {"outage"}
        num_calls = len(service.calls)
        with pytest.raises(rf.ServiceOutage):
            agent.submit(singles(1, step=1))
        await asyncio.sleep(1000)
        assert len(service.calls) == num_calls, "nothing is sent any more"

    with_agent(use, service, max_concurrency=20, outage_give_up_s=300)


def test_everybody_who_waits_is_told_of_the_outage() -> None:
    service = Service(is_up=False)

    async def use(agent: rf.RewardAgent) -> None:
        tickets = [agent.submit(singles(30, step=step)) for step in range(3)]
        opened = agent.open()

        async def outcome(waiting: Awaitable[Any]) -> Any:
            try:
                return await waiting
            except rf.AgentHalted as error:
                return error

        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(outcome(ticket.all())) for ticket in [*tickets, opened]]
        errors = [wait.result() for wait in waits]
        assert [type(error) for error in errors] == [rf.ServiceOutage] * 4
        assert [len(error.groups) for error in errors] == [30, 30, 30, 0]

    with_agent(use, service, outage_give_up_s=100)


def test_all_gives_on_the_exception_also_the_groups_that_were_finished() -> None:
    service = Service()

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(60))
        await asyncio.sleep(1.5)
        service.is_up = False
        with pytest.raises(rf.ServiceOutage) as caught:
            await ticket.all()
        kinds = Counter(one.rewards[0].kind for one in caught.value.groups)
        assert kinds[None] == 20
        assert sum(kinds.values()) == 60

    with_agent(use, service, max_concurrency=20, outage_give_up_s=100)


def test_an_outage_inside_the_block_leaves_it_as_that_error() -> None:
    async def main() -> None:
        async with rf.RewardAgent(Service(is_up=False), outage_give_up_s=10) as agent:
            await agent.submit(singles(100)).all()

    with pytest.raises(rf.ServiceOutage):
        clock.run(main())


def test_an_outage_costs_no_rollout_an_attempt() -> None:
    """Down for an hour, with the fewest attempts that allow a retry: afterwards everything is scored."""
    service = Service()

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(300))
        await asyncio.sleep(5.5)
        service.is_up = False
        await asyncio.sleep(3600)
        service.is_up = True
        kinds = Counter(one.rewards[0].kind for one in await ticket.all())
        assert kinds == {None: 300}

    with_agent(use, service, max_concurrency=8, max_attempts=3, outage_give_up_s=7200)


def test_bugs_of_the_reward_are_no_outage() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        raise KeyError("bug")

    verdicts = score(reward, singles(500), max_concurrency=10)
    assert {verdict.kind for verdict in verdicts} == {"user_error"}


def test_a_few_failures_among_many_answers_are_no_outage() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        if int(solution_str) % 3 == 0:
            raise rf.ServiceError("now and then")
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(singles(600)).all()
        assert agent.statistics().accounts[0].governors.endpoints[0].breaker.times_opened == 0

    with_agent(use, reward, max_concurrency=10, max_attempts=1)


def test_without_a_guard_failures_stay_failures() -> None:
    verdicts = score(Service(is_up=False), singles(100), outage_share=None, max_attempts=1)
    assert {verdict.kind for verdict in verdicts} == {"service"}


def test_a_quota_that_answers_429_for_ever_ends_in_an_outage_instead_of_thousands_of_calls() -> None:
    calls: list[float] = []

    async def reward(solution_str: str) -> float:
        calls.append(now())
        await asyncio.sleep(0.05)
        raise rf.RateLimited("quota exceeded for this month")

    async def use(agent: rf.RewardAgent) -> None:
        with pytest.raises(rf.ServiceOutage, match="quota exceeded"):
            await agent.submit(singles(1000)).all()
        assert now() <= 2 * 3600

    with_agent(use, reward)


# -- money -------------------------------------------------------------------------------------------------------------


class Paid:
    def __init__(self, cost_usd: float) -> None:
        self.cost_usd = cost_usd
        self.num_calls = 0

    async def compute_score(self, solution_str: str) -> float:
        self.num_calls += 1
        await asyncio.sleep(1 + int(solution_str) % 5)
        rf.report_usage(cost_usd=self.cost_usd)
        return 1.0


@pytest.mark.parametrize("max_concurrency", [1, 7, 200])
def test_the_cap_is_never_passed_however_many_calls_are_out(max_concurrency: int) -> None:
    reward = Paid(0.25)

    async def use(agent: rf.RewardAgent) -> None:
        with pytest.raises(rf.BudgetExhausted) as caught:
            await agent.submit(singles(100)).all()
        assert agent.statistics().ledger.spent_usd <= 5.0
        assert reward.num_calls == 20, "and it is used up, as every call fits"
        kinds = Counter(one.rewards[0].kind for one in caught.value.groups)
        assert kinds == {None: 20, "budget": 80}
        message = str(caught.value)
        assert "max_cost_usd=5" in message
        assert "5" in message
        with pytest.raises(rf.BudgetExhausted):
            agent.submit(singles(1, step=1))

    with_agent(use, reward, max_cost_usd=5.0, call_cost_usd=0.25, max_concurrency=max_concurrency)


def test_a_cap_of_three_times_a_tenth_pays_for_three_calls_of_a_tenth() -> None:
    reward = Paid(0.1)
    assert all(verdict.is_scored for verdict in score(reward, singles(3), max_cost_usd=0.3, call_cost_usd=0.1))


def test_a_cap_that_everything_fits_under_is_not_noticed() -> None:
    reward = Paid(0.25)
    assert all(verdict.is_scored for verdict in score(reward, singles(20), max_cost_usd=5.0, call_cost_usd=0.25))


def test_without_a_known_price_the_cap_still_holds() -> None:
    """The first call finds the price out; from then on every call reserves it."""
    reward = Paid(0.25)

    async def use(agent: rf.RewardAgent) -> None:
        with pytest.raises(rf.BudgetExhausted):
            await agent.submit(singles(100)).all()
        assert agent.statistics().ledger.spent_usd <= 5.0
        assert reward.num_calls == 20

    with_agent(use, reward, max_cost_usd=5.0, max_concurrency=50)


def test_retries_are_paid_from_the_same_purse() -> None:
    num_calls = 0

    async def reward(solution_str: str) -> float:
        nonlocal num_calls
        num_calls += 1
        await asyncio.sleep(1)
        rf.report_usage(cost_usd=1.0)
        raise rf.ServiceError("paid and failed")

    async def use(agent: rf.RewardAgent) -> None:
        with pytest.raises(rf.BudgetExhausted):
            await agent.submit(singles(10)).all()
        assert agent.statistics().ledger.spent_usd == num_calls == 15

    with_agent(use, reward, max_cost_usd=15.0, call_cost_usd=1.0, max_attempts=5, outage_share=None)


def test_two_weighted_rewards_share_one_cap() -> None:
    first, second = Paid(1.0), Paid(1.0)

    async def use(agent: rf.RewardAgent) -> None:
        with pytest.raises(rf.BudgetExhausted):
            await agent.submit(singles(50)).all()
        assert agent.statistics().ledger.spent_usd == first.num_calls + second.num_calls == 10

    with_agent(use, [rf.Weighted(first, name="a"), rf.Weighted(second, name="b")], max_cost_usd=10.0, call_cost_usd=1.0)


def test_what_earlier_runs_on_the_same_journal_spent_counts_against_the_cap(tmp_path: Path) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"journal": tmp_path / "j.db", "max_cost_usd": 5.0, "call_cost_usd": 1.0}
        async with rf.RewardAgent(Paid(1.0), **options) as agent:
            await agent.submit(singles(3)).all()
        reward = Paid(1.0)
        async with rf.RewardAgent(reward, **options) as agent:
            assert agent.statistics().ledger.spent_usd == 3.0
            with pytest.raises(rf.BudgetExhausted):
                await agent.submit(singles(10, step=1)).all()
        assert reward.num_calls == 2

    clock.run(main())


def test_what_the_budget_cut_off_is_called_by_the_next_run_with_a_higher_cap(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(rf.BudgetExhausted):
            async with rf.RewardAgent(
                Paid(1.0), journal=tmp_path / "j.db", max_cost_usd=5.0, call_cost_usd=1.0
            ) as agent:
                await agent.submit(singles(10)).all()
        reward = Paid(1.0)
        async with rf.RewardAgent(reward, journal=tmp_path / "j.db", max_cost_usd=50.0, call_cost_usd=1.0) as agent:
            groups = await agent.submit(singles(10)).all()
            assert all(one.rewards[0].is_scored for one in groups)
        assert reward.num_calls == 5

    clock.run(main())


# -- a real server -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def judge_server(*answers: tuple[int, dict[str, str]]) -> AsyncIterator[tuple[str, list[float]]]:
    """Gives these answers (status, headers) in turn, then 200 and a score. Yields its address and when it was asked."""
    asked: list[float] = []

    async def judge(request: web.Request) -> web.Response:
        asked.append(time.monotonic())
        status, headers = answers[len(asked) - 1] if len(asked) <= len(answers) else (200, {})
        if status == 0:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return web.json_response({"score": 0.5}, status=status, headers=headers)

    application = web.Application()
    application.router.add_post("/judge", judge)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}/judge", asked
    finally:
        await runner.cleanup()


class AiohttpJudge:
    def __init__(self, url: str) -> None:
        self.url = url
        self.session: aiohttp.ClientSession | None = None

    async def compute_score(self, solution_str: str) -> float:
        if self.session is None:
            self.session = aiohttp.ClientSession()
        async with self.session.post(self.url, json={"text": solution_str}) as response:
            rf.report_headers(response.headers)
            response.raise_for_status()
            return float((await response.json())["score"])

    async def aclose(self) -> None:
        if self.session is not None:
            await self.session.close()


class UrllibJudge:
    def __init__(self, url: str) -> None:
        self.url = url

    def compute_score(self, solution_str: str) -> float:
        request = urllib.request.Request(self.url, data=b"{}", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return 0.5 if response.status == 200 else -1.0
        except urllib.error.HTTPError as error:
            error.close()
            raise


def ask(judge: Any, *answers: tuple[int, dict[str, str]], **options: Any) -> tuple[rf.Reward, list[float]]:
    async def main() -> tuple[rf.Reward, list[float]]:
        async with judge_server(*answers) as (url, asked):
            settings: dict[str, Any] = {
                "backoff_s": 0.01,
                "rpm": None,
                "max_concurrency": 2,
                "reward_kwargs": {"url": url},
            }
            async with rf.RewardAgent(judge, **{**settings, **options}) as agent:
                (one,) = await agent.submit(singles(1)).all()
            return one.rewards[0], asked

    return asyncio.run(main())


JUDGES = [AiohttpJudge, UrllibJudge]


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_real_answer_that_may_pass_is_asked_again(judge: Any, status: int) -> None:
    verdict, asked = ask(judge, (status, {}), (status, {}))
    assert (verdict.value, verdict.attempts, len(asked)) == (0.5, 3, 3), verdict.error


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_real_answer_that_cannot_pass_is_not_asked_again(judge: Any, status: int) -> None:
    verdict, asked = ask(judge, (status, {}))
    assert (verdict.value, verdict.attempts, len(asked)) == (None, 1, 1)
    assert str(status) in (verdict.error or "")


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("status", [429, 503])
def test_a_real_retry_after_in_seconds_is_kept(judge: Any, status: int) -> None:
    verdict, asked = ask(judge, (status, {"Retry-After": "0.3"}))
    assert verdict.value == 0.5
    assert asked[1] - asked[0] >= 0.3


def test_a_real_retry_after_as_a_date_is_kept() -> None:
    until = time.time() + 1.6
    verdict, asked = ask(AiohttpJudge, (429, {"Retry-After": http_date(1.6)}))
    assert verdict.value == 0.5
    assert len(asked) == 2
    assert time.time() >= int(until) - 0.05


@pytest.mark.parametrize("judge", JUDGES)
def test_a_real_connection_that_breaks_is_asked_again(judge: Any) -> None:
    verdict, asked = ask(judge, (0, {}))
    assert (verdict.value, len(asked) >= 2) == (0.5, True), verdict.error


@pytest.mark.parametrize("judge", JUDGES)
def test_a_server_that_is_not_there_is_a_failed_service(judge: Any) -> None:
    async def main() -> rf.Reward:
        async with judge_server() as (url, _):
            pass
        options: dict[str, Any] = {"reward_kwargs": {"url": url}, "backoff_s": 0.01, "max_concurrency": 1}
        async with rf.RewardAgent(judge, max_attempts=2, **options) as agent:
            return (await agent.submit(singles(1)).all())[0].rewards[0]

    verdict = asyncio.run(main())
    assert (verdict.kind, verdict.attempts) == ("service", 2), verdict.error


def test_announced_limits_of_a_real_server_teach_the_pace() -> None:
    async def main() -> None:
        limits = {"x-ratelimit-limit-requests": "1200", "x-ratelimit-reset-requests": "1s"}
        async with (
            judge_server((200, limits)) as (url, _),
            rf.RewardAgent(AiohttpJudge, reward_kwargs={"url": url}) as agent,
        ):
            await agent.submit(singles(1)).all()
            assert agent.statistics().accounts[0].governors.pace.rpm == pytest.approx(1200, rel=0.2)

    asyncio.run(main())


def test_a_rollout_that_always_hangs_does_not_keep_an_outage_alive() -> None:
    """A probe is made with another job each time, so that one bad request cannot speak for the service."""

    async def judge(solution_str: str) -> float:
        await asyncio.sleep(1000 if solution_str == "20" else 1)
        if 5 <= asyncio.get_running_loop().time() <= 15:
            raise rf.ServiceError("down")
        return 1.0

    async def main() -> list[rf.ScoredGroup]:
        rollouts = [rf.Rollout(group_id=str(i), response=str(i)) for i in range(300)]
        async with rf.RewardAgent(judge, max_concurrency=20, timeout_s=5) as agent:
            return await agent.submit(rollouts).all()

    failed = [reward.kind for group in clock.run(main()) for reward in group.rewards if not reward.is_scored]
    assert failed == ["timeout"]


def test_a_cap_with_a_price_a_call_holds_also_for_rewards_that_report_nothing() -> None:
    async def judge(solution_str: str) -> float:
        await asyncio.sleep(1)
        return 1.0

    async def main() -> tuple[int, float]:
        rollouts = [rf.Rollout(group_id=str(i), response="") for i in range(20)]
        async with rf.RewardAgent(judge, max_cost_usd=5.0, call_cost_usd=1.0, max_concurrency=3) as agent:
            with pytest.raises(rf.BudgetExhausted):
                await agent.submit(rollouts).all()
            statistics = agent.statistics()
            return statistics.calls, statistics.ledger.spent_usd

    assert clock.run(main()) == (5, 5.0)


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


def test_requests_that_are_themselves_at_fault_say_nothing_of_the_service() -> None:
    async def judge(solution_str: str) -> float:
        await asyncio.sleep(0.1)
        raise rf.ServiceError("context too long", status=400, retryable=False)

    async def main() -> rf.AgentStatistics:
        async with rf.RewardAgent(judge, max_concurrency="auto") as agent:
            await agent.submit(rf.Rollout(group_id=str(i), response="") for i in range(200)).all()
            return agent.statistics()

    (account,) = clock.run(main()).accounts
    assert account.governors.endpoints[0].breaker.times_opened == 0
    assert account.governors.concurrency.limit >= 16


def test_a_reward_that_knows_its_own_endpoints_has_its_calls_spread_over_them() -> None:
    class Judge:
        endpoints = ("a", "b")

        async def compute_score(self, solution_str: str) -> dict[str, object]:
            await asyncio.sleep(1)
            call = rf.current_call()
            return {"score": 1.0, "endpoint": call.endpoint if call else None}

    async def main(**options: Any) -> set[object]:
        async with rf.RewardAgent(Judge, **options) as agent:
            groups = await agent.submit(rf.Rollout(group_id=str(i), response="") for i in range(10)).all()
            return {group.rewards[0].extras["endpoint"] for group in groups}

    assert clock.run(main()) == {"a", "b"}
    assert clock.run(main(endpoints=["c"])) == {"c"}, "what the caller says goes before"
