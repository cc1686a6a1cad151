"""Which call starts next and how long it may take: order, slots, time limits and hedges."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest
from agent_at_work import now, with_agent
from rollouts import group, numbered
from scoring import score, score_groups
from simple_rewards import (
    ScriptedReward,
)

import rewardflow as rf
from rewardflow import clock

# -- order and slots ---------------------------------------------------------------------------------------------------


def test_when_slots_are_scarce_calls_go_group_by_group_whatever_the_order_of_rollouts() -> None:
    order: list[str] = []

    async def reward(solution_str: str) -> float:
        order.append(solution_str)
        await asyncio.sleep(1)
        return 1.0

    groups = [group(f"g{number}", *[f"{number}.{index}" for index in range(3)]) for number in range(3)]
    shuffled = [one[index] for index in (2, 0, 1) for one in groups]
    score_groups(reward, shuffled, max_concurrency=1)
    assert [place.split(".")[0] for place in order] == ["0", "0", "0", "1", "1", "1", "2", "2", "2"]


def test_the_oldest_step_goes_first_even_when_it_is_submitted_last() -> None:
    order: list[str] = []

    async def reward(solution_str: str) -> float:
        order.append(solution_str)
        await asyncio.sleep(1)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=1) as agent:
            late = agent.submit([rollout for i in range(3) for rollout in group(f"g{i}", "two", step=2)])
            await asyncio.sleep(0.5)
            middle = agent.submit([rollout for i in range(3) for rollout in group(f"g{i}", "one", step=1)])
            early = agent.submit([rollout for i in range(3) for rollout in group(f"g{i}", "zero", step=0)])
            for ticket in (late, middle, early):
                assert len(await ticket.all()) == 3

    clock.run(main())
    assert order == ["two", *["zero"] * 3, *["one"] * 3, *["two"] * 2]


def test_a_retry_of_an_older_step_goes_before_new_calls_of_a_younger_one() -> None:
    order: list[str] = []

    async def reward(solution_str: str) -> float:
        order.append(solution_str)
        await asyncio.sleep(10)
        if order.count("old") == 1 and solution_str == "old":
            raise rf.ServiceError("once")
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=1) as agent:
            old = agent.submit(group("old", "old", step=0))
            young = agent.submit([rollout for i in range(5) for rollout in group(f"y{i}", "young", step=1)])
            await old.all()
            await young.all()

    clock.run(main())
    assert order[:3] == ["old", "young", "old"]


def test_a_slow_call_of_one_step_delays_nothing_of_the_next() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(float(solution_str))
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=4, timeout_s=None) as agent:
            first = agent.submit([*group("a", "5000"), *group("b", "1"), *group("c", "1")])
            second = agent.submit([rollout for i in range(9) for rollout in group(f"g{i}", "1", step=1)])
            assert len(await second.all()) == 9
            assert now() == 1 + 3  # two of four slots for the first second, then three
            assert {one.group_id for one in await first.take(2)} == {"b", "c"}
            assert [one.group_id for one in await first.all()] == ["a"]
            assert now() == 5000.0

    clock.run(main())


def test_no_more_calls_are_out_than_max_concurrency_and_slots_return_to_zero() -> None:
    out = most = 0

    async def reward(solution_str: str) -> float:
        nonlocal out, most
        out += 1
        most = max(most, out)
        try:
            await asyncio.sleep(float(solution_str) % 7 + 0.1)
        finally:
            out -= 1
        if solution_str.endswith("3"):
            raise rf.ServiceError("sometimes")
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=5, outage_share=None) as agent:
            await agent.submit([rollout for i in range(100) for rollout in group(f"g{i}", str(i))]).all()
            statistics = agent.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            assert statistics.verdicts.submitted == 100
            assert statistics.verdicts.scored == 90
            assert statistics.verdicts.failed == {"service": 10}
        assert most == 5
        assert out == 0

    clock.run(main())


# -- time limits -------------------------------------------------------------------------------------------------------


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
        groups = await agent.submit(numbered(3)).all()
        verdicts = [one.rewards[0] for one in groups]
        assert [verdict.kind for verdict in verdicts] == ["timeout", None, None]
        assert "10" in (verdicts[0].error or "")
        assert cancelled == [10.0]
        assert now() == 12.0

    with_agent(use, reward, max_concurrency=1, timeout_s=10, max_attempts=1)


def test_the_time_limit_of_a_verdict_covers_all_attempts_from_the_first_start() -> None:
    reward = ScriptedReward(1.0, takes_s=1000)
    (verdict,) = score(reward, numbered(1), timeout_s=10, verdict_timeout_s=25, max_attempts=100)
    assert verdict.kind == "timeout"
    assert 20 <= verdict.latency_s <= 25
    assert reward.num_calls <= 4


def test_waiting_for_a_slot_does_not_count_against_the_time_limit_of_a_verdict() -> None:
    reward = ScriptedReward(1.0, takes_s=8)
    verdicts = score(reward, numbered(20), verdict_timeout_s=10, max_concurrency=1)
    assert all(verdict.is_scored for verdict in verdicts)
    assert {verdict.latency_s for verdict in verdicts} == {8.0}


def test_the_time_limit_of_a_verdict_holds_also_while_its_retry_waits_for_the_pace() -> None:
    """Another call's Retry-After stops all sending for long; what began before still gets its verdict in time."""

    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        if solution_str == "0":
            raise rf.ServiceError("x")
        raise rf.RateLimited(retry_after_s=1000)

    verdicts = score(reward, numbered(2), verdict_timeout_s=20, backoff_s=5)
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
        groups = await agent.submit(numbered(3)).all()
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

    (verdict,) = score(reward, numbered(1), timeout_s=10, max_attempts=1)
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

    (verdict,) = score(reward, numbered(1), timeout_s=10, max_attempts=1)
    assert verdict.kind == "timeout"
    assert cleaned == [10.5]


def test_a_timeout_of_the_rewards_own_is_told_from_ours_but_is_a_timeout_too() -> None:
    async def reward(solution_str: str) -> float:
        async with asyncio.timeout(3):
            await asyncio.sleep(1000)
        return 1.0

    (verdict,) = score(reward, numbered(1), timeout_s=10, max_attempts=1)
    assert (verdict.kind, verdict.latency_s) == ("timeout", 3.0)


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
        await agent.submit(numbered(40)).all()
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
        await agent.submit(numbered(40)).all()
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
        await agent.submit(numbered(100)).all()
        await agent.submit([rollout for rollout in numbered(400) if int(rollout.response) >= 100]).all()
        (account,) = agent.statistics().accounts
        assert 0 < account.hedges <= 0.05 * account.calls

    with_agent(use, reward, hedge_quantile=0.9, hedge_share=0.05, max_concurrency=50, retry_budget=10.0)


def test_hedges_never_pass_the_limit_on_concurrency() -> None:
    reward = Straggling({str(i) for i in range(0, 200, 3)}, slow_s=30.0)
    score(reward, numbered(200), hedge_quantile=0.5, hedge_share=1.0, max_concurrency=7)
    assert reward.most == 7


def test_a_hedge_goes_to_another_endpoint_if_there_is_one() -> None:
    reward = Straggling({"slow"})

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(numbered(40)).all()
        await agent.submit([rf.Rollout(group_id="slow", response="slow")]).all()
        assert sorted(reward.endpoints["slow"], key=str) == ["a", "b"]

    with_agent(use, reward, hedge_quantile=0.9, endpoints=["a", "b"], timeout_s=5000)


def test_without_hedge_quantile_nothing_is_asked_twice() -> None:
    reward = Straggling({str(i) for i in range(50, 60)}, slow_s=50.0)
    score(reward, numbered(60))
    assert set(reward.attempts.values()) == {1}


def test_when_original_and_hedge_both_fail_there_is_one_failed_verdict() -> None:
    class Judge(Straggling):
        async def compute_score(self, solution_str: str) -> float:
            value = await super().compute_score(solution_str)
            if solution_str == "slow":
                raise ValueError("both")
            return value

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(numbered(40)).all()
        (one,) = await agent.submit([rf.Rollout(group_id="slow", response="slow")]).all()
        assert one.rewards[0].kind == "user_error"
        await asyncio.sleep(100)
        assert agent.statistics().in_flight == 0
        assert agent.statistics().verdicts.delivered == 41

    with_agent(use, Judge({"slow"}, slow_s=30), hedge_quantile=0.9, timeout_s=5000)


# -- hooks that raise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["cost_bound_usd", "estimate_tokens"])
@pytest.mark.parametrize("kind", [KeyError, GeneratorExit, SystemExit, asyncio.CancelledError, StopIteration])
def test_whatever_a_hook_raises_is_a_failed_verdict_of_its_call_alone(hook: str, kind: type[BaseException]) -> None:
    def raise_for_bad(rollout: rf.Rollout) -> int:
        if rollout.response == "bad":
            raise kind
        return 1

    class Reward:
        async def compute_score(self, response: str) -> float:
            return 1.0

    reward = Reward()
    setattr(reward, hook, raise_for_bad)
    rewards = score(reward, group("a", "x") + group("b", "bad") + group("c", "y"), max_cost_usd=99.0, tpm=10_000)
    assert [one.kind for one in rewards] == [None, "user_error", None]
    assert f"{hook} failed: " in (rewards[1].error or "")
    assert kind.__name__ in (rewards[1].error or "")


def test_a_keyboard_interrupt_of_a_hook_off_the_main_thread_is_a_failed_verdict() -> None:
    class Reward:
        def cost_bound_usd(self, rollout: rf.Rollout) -> float:
            raise KeyboardInterrupt

        async def compute_score(self, response: str) -> float:
            return 1.0

    rewards = rf.score(numbered(2), Reward(), max_cost_usd=99.0)
    assert [one.kind for one in rewards] == ["user_error", "user_error"]


# -- what a call tells of itself ---------------------------------------------------------------------------------------


def test_a_count_of_tokens_that_cannot_be_true_ends_neither_the_run_nor_its_call() -> None:
    async def reward(solution_str: str) -> float:
        call = rf.current_call()
        assert call is not None
        call.tokens = 10**400
        return 1.0

    verdicts = score(reward, numbered(4), tpm=1000)
    assert [(one.value, one.tokens) for one in verdicts] == [(1.0, 0)] * 4


def test_counts_of_a_group_that_cannot_be_true_end_neither_the_run_nor_its_call() -> None:
    class Reward:
        async def score_group(self, rollouts: list[rf.Rollout]) -> list[dict[str, float]]:
            return [{"score": 1.0, "tokens": 1.5e308, "cost_usd": 1.5e308} for _ in rollouts]

    (verdicts,) = score_groups(Reward(), group("g", *"abcd"))
    assert [(one.value, one.tokens, one.cost_usd) for one in verdicts.rewards] == [(1.0, 0, 0.0)] * 4
