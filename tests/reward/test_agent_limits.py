"""The limits of an account, through the agent: rate, tokens, endpoints, usage and money."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agent_at_work import now, with_agent
from rollouts import numbered
from scoring import score
from simple_rewards import (
    ScriptedReward,
)

import rewardflow as rf
from rewardflow import clock

# -- rate --------------------------------------------------------------------------------------------------------------


def test_a_set_rate_is_never_passed() -> None:
    reward = ScriptedReward(1.0, takes_s=3.0)
    score(reward, numbered(50), rpm=60, max_concurrency=50)
    starts = sorted(start for all_starts in reward.starts.values() for start in all_starts)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert min(gaps) >= 1.0 - 1e-6
    assert max(gaps) <= 1.1


def test_a_set_token_rate_holds_by_what_the_service_reports() -> None:
    async def pay() -> float:
        rf.report_usage(tokens=1000)
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(numbered(120)).all()
        assert 18 * 60 <= now() <= 22 * 60  # six calls of 1000 tokens a minute

    with_agent(use, ScriptedReward(pay, takes_s=1.0), tpm=6000, max_concurrency=1)


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
            groups = await agent.submit(numbered(3)).all()
        assert [one.rewards[0].value is None for one in groups] in ([False, True, False], [False, False, False])

    with_agent(use, Judge, tpm=100_000)


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
    score(fleet, numbered(90), endpoints=["a", "b", "c"], max_concurrency=9)
    assert [fleet.num_calls(name) for name in "abc"] == [30, 30, 30]


def test_a_retry_goes_to_another_endpoint() -> None:
    reward = ScriptedReward(rf.ServiceError("x"), 1.0)
    score(reward, numbered(20), endpoints=["a", "b"], max_concurrency=4)
    assert all(first != second for first, second in reward.endpoints.values())


def test_when_one_endpoint_is_down_the_others_do_its_work_and_it_is_hardly_asked() -> None:
    fleet = Fleet("b")
    verdicts = score(fleet, numbered(400), endpoints=["a", "b"], max_concurrency=10)
    assert all(verdict.is_scored for verdict in verdicts)
    assert fleet.num_calls("b") <= 60


def test_an_endpoint_that_is_back_is_found_by_probes_and_used_again() -> None:
    fleet = Fleet("b")

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(numbered(300, step=0)).all()
        states = {one.name: one.breaker.state for one in agent.statistics().accounts[0].governors.endpoints}
        assert states["a"] == "closed"
        assert states["b"] != "closed"
        fleet.broken.clear()
        await agent.submit(numbered(300, step=1)).all()
        began_s = now()
        await agent.submit(numbered(200, step=2)).all()
        assert fleet.num_calls("b", began_s) >= 80
        states = {one.name: one.breaker.state for one in agent.statistics().accounts[0].governors.endpoints}
        assert states == {"a": "closed", "b": "closed"}

    with_agent(use, fleet, endpoints=["a", "b"], max_concurrency=10)


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


# -- usage -------------------------------------------------------------------------------------------------------------


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
                groups = await agent.submit([*numbered(3), *numbered(2, step=1)]).all()
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
        groups = await agent.submit(numbered(2)).all()
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

    (verdict,) = score(reward, numbered(1))
    assert verdict.kind == "user_error"


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
            await agent.submit(numbered(100)).all()
        assert agent.statistics().ledger.spent_usd <= 5.0
        assert reward.num_calls == 20, "and it is used up, as every call fits"
        kinds = Counter(one.rewards[0].kind for one in caught.value.groups)
        assert kinds == {None: 20, "budget": 80}
        message = str(caught.value)
        assert "max_cost_usd=5" in message
        assert "5" in message
        with pytest.raises(rf.BudgetExhausted):
            agent.submit(numbered(1, step=1))

    with_agent(use, reward, max_cost_usd=5.0, call_cost_usd=0.25, max_concurrency=max_concurrency)


def test_a_cap_of_three_times_a_tenth_pays_for_three_calls_of_a_tenth() -> None:
    reward = Paid(0.1)
    assert all(verdict.is_scored for verdict in score(reward, numbered(3), max_cost_usd=0.3, call_cost_usd=0.1))


def test_a_cap_that_everything_fits_under_is_not_noticed() -> None:
    reward = Paid(0.25)
    assert all(verdict.is_scored for verdict in score(reward, numbered(20), max_cost_usd=5.0, call_cost_usd=0.25))


def test_without_a_known_price_the_cap_still_holds() -> None:
    """The first call finds the price out; from then on every call reserves it."""
    reward = Paid(0.25)

    async def use(agent: rf.RewardAgent) -> None:
        with pytest.raises(rf.BudgetExhausted):
            await agent.submit(numbered(100)).all()
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
            await agent.submit(numbered(10)).all()
        assert agent.statistics().ledger.spent_usd == num_calls == 15

    with_agent(use, reward, max_cost_usd=15.0, call_cost_usd=1.0, max_attempts=5, outage_share=None)


def test_two_weighted_rewards_share_one_cap() -> None:
    first, second = Paid(1.0), Paid(1.0)

    async def use(agent: rf.RewardAgent) -> None:
        with pytest.raises(rf.BudgetExhausted):
            await agent.submit(numbered(50)).all()
        assert agent.statistics().ledger.spent_usd == first.num_calls + second.num_calls == 10

    with_agent(use, [rf.Weighted(first, name="a"), rf.Weighted(second, name="b")], max_cost_usd=10.0, call_cost_usd=1.0)


def test_what_earlier_runs_on_the_same_journal_spent_counts_against_the_cap(tmp_path: Path) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"journal": tmp_path / "j.db", "max_cost_usd": 5.0, "call_cost_usd": 1.0}
        async with rf.RewardAgent(Paid(1.0), **options) as agent:
            await agent.submit(numbered(3)).all()
        reward = Paid(1.0)
        async with rf.RewardAgent(reward, **options) as agent:
            assert agent.statistics().ledger.spent_usd == 3.0
            with pytest.raises(rf.BudgetExhausted):
                await agent.submit(numbered(10, step=1)).all()
        assert reward.num_calls == 2

    clock.run(main())


def test_what_the_budget_cut_off_is_called_by_the_next_run_with_a_higher_cap(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(rf.BudgetExhausted):
            async with rf.RewardAgent(
                Paid(1.0), journal=tmp_path / "j.db", max_cost_usd=5.0, call_cost_usd=1.0
            ) as agent:
                await agent.submit(numbered(10)).all()
        reward = Paid(1.0)
        async with rf.RewardAgent(reward, journal=tmp_path / "j.db", max_cost_usd=50.0, call_cost_usd=1.0) as agent:
            groups = await agent.submit(numbered(10)).all()
            assert all(one.rewards[0].is_scored for one in groups)
        assert reward.num_calls == 5

    clock.run(main())


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
