"""The cascade: the judge is asked where the rule cannot decide, and nowhere else."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from rollouts import singles
from scoring import score
from warm_rules import warm

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.cascade import Cascade, CascadeStatistics
from rewardflow.services.rules import GSM8K, Format, Regex


@dataclass
class Judge:
    """Says 0.7 to everything, after `latency_s`, and remembers what it was asked."""

    latency_s: float = 1.0
    fails: int = 0
    asked: list[str] = field(default_factory=list)
    is_closed: bool = False
    endpoints: tuple[str, ...] = ("http://a", "http://b")

    async def compute_score(self, rollout: rf.Rollout) -> rf.Reward:
        self.asked.append(rollout.response)
        await asyncio.sleep(self.latency_s)
        rf.report_usage(cost_usd=0.5, tokens=100)
        if self.fails:
            self.fails -= 1
            raise rf.ServiceError("down", status=503)
        return rf.Reward(value=0.7, explanation="nice", extras={"model": "m"})

    def estimate_tokens(self, rollout: rf.Rollout) -> int:
        return 123

    def price_problem(self) -> str | None:
        return None

    async def aclose(self) -> None:
        self.is_closed = True


RIGHT, WRONG, UNMARKED = "#### 4", "#### 5", "It is four."


def rollouts(*responses: str) -> list[rf.Rollout]:
    return singles(*responses, ground_truth="4")


def test_the_judge_is_asked_only_where_the_rule_cannot_decide() -> None:
    judge = Judge()
    cascade = Cascade(first=GSM8K(), then=judge)
    rewards = score(cascade, rollouts(RIGHT, WRONG, UNMARKED))
    assert [reward.value for reward in rewards] == [1.0, 0.0, 0.7]
    assert [reward.extras["decided_by"] for reward in rewards] == ["rule", "rule", "judge"]
    assert judge.asked == [UNMARKED]
    assert [reward.cost_usd for reward in rewards] == [0.0, 0.0, 0.5]
    assert cascade.statistics() == CascadeStatistics(decided_by_rule=2, judge_asked=1)
    assert cascade.statistics().calls_saved == 2
    assert cascade.statistics().share_saved == pytest.approx(2 / 3)


def test_of_a_hundred_rollouts_only_those_that_the_judge_sees_are_paced() -> None:
    def took_s(*responses: str) -> float:
        async def run() -> float:
            async with rf.RewardAgent(Cascade(first=GSM8K(), then=Judge()), rpm=60) as agent:
                await agent.submit(rollouts(*responses)).all()
                assert agent.statistics().calls == responses.count(UNMARKED)
            return asyncio.get_running_loop().time()

        return clock.run(run())

    assert took_s(*[RIGHT] * 95, *[UNMARKED] * 5) == took_s(*[UNMARKED] * 5)
    assert took_s(*[UNMARKED] * 100) > 60.0


def test_what_the_rule_decides_does_not_wait_for_a_judge_that_hangs() -> None:
    async def run() -> None:
        cascade = Cascade(first=GSM8K(), then=Judge(latency_s=1e6))
        async with rf.RewardAgent(cascade, max_concurrency=1, timeout_s=None) as agent:
            ticket = agent.submit(rollouts(UNMARKED, UNMARKED, RIGHT, WRONG))
            groups = await ticket.take(2)
            assert sorted(group.rewards[0].value or 0.0 for group in groups) == [0.0, 1.0]
            assert asyncio.get_running_loop().time() == 0.0
            ticket.cancel()

    clock.run(run())


def test_a_resumed_run_remembers_who_decided(tmp_path: Path) -> None:
    def run() -> tuple[list[rf.Reward], Cascade]:
        cascade = Cascade(first=GSM8K(), then=judge_of_a_half)
        return score(cascade, rollouts(RIGHT, UNMARKED), journal=tmp_path / "journal.db"), cascade

    first, _ = run()
    second, cascade = run()
    assert cascade.statistics() == CascadeStatistics(decided_by_rule=0, judge_asked=0)
    assert [reward.cached for reward in second] == [True, True]
    assert [reward.extras for reward in second] == [reward.extras for reward in first]
    assert [reward.extras["decided_by"] for reward in second] == ["rule", "judge"]


async def judge_of_a_half(response: str) -> float:
    return 0.5


def test_the_judge_may_look_at_what_the_rule_calls_wrong() -> None:
    judge = Judge()
    rewards = score(Cascade(first=GSM8K(), then=judge, ask_below=1.0), rollouts(RIGHT, WRONG))
    assert [reward.value for reward in rewards] == [1.0, 0.7]
    assert rewards[1].extras == {
        "model": "m",
        "decided_by": "judge",
        "rule_score": 0.0,
        "rule_explanation": "answered 5, but the truth is 4",
    }


def test_a_rule_may_be_a_gate_before_the_judge() -> None:
    judge = Judge()
    cascade = Cascade(first=Format(tags=["answer"]), then=judge, ask_above=0.5)
    assert [reward.value for reward in score(cascade, rollouts("<answer>4</answer>", "4"))] == [0.7, 0.0]
    assert judge.asked == ["<answer>4</answer>"]


def test_a_failed_judge_is_a_failed_verdict_and_never_the_rules_number() -> None:
    rewards = score(Cascade(first=GSM8K(), then=Judge(fails=99), ask_below=1.0), rollouts(WRONG), max_attempts=2)
    assert (rewards[0].status, rewards[0].value, rewards[0].kind) == ("failed", None, "service")


def test_a_judge_that_returns_no_number_is_a_failed_verdict_too() -> None:
    async def speechless(response: str) -> None:
        return None

    reward = score(Cascade(first=GSM8K(), then=speechless), rollouts(UNMARKED))[0]
    assert (reward.value, reward.kind, reward.extras["decided_by"]) == (None, "unparsable", "judge")


def test_a_retry_is_not_counted_as_another_rollout() -> None:
    judge = Judge(fails=1)
    cascade = Cascade(first=GSM8K(), then=judge)
    assert score(cascade, rollouts(UNMARKED), backoff_s=0.01)[0].attempts == 2
    assert len(judge.asked) == 2
    assert cascade.statistics() == CascadeStatistics(decided_by_rule=0, judge_asked=1)


def test_a_slow_rule_runs_off_the_loop_and_a_plain_judge_too() -> None:
    threads: set[str] = set()

    class Slow:
        def decide(self, rollout: rf.Rollout) -> rf.Reward | None:
            threads.add(threading.current_thread().name)
            return None

    def blocking(solution_str: str) -> float:
        threads.add(threading.current_thread().name)
        rf.report_usage(cost_usd=0.25)
        return 0.5

    reward = score(Cascade(first=Slow(), then=blocking), rollouts(UNMARKED))[0]
    assert (reward.value, reward.cost_usd, reward.attempts) == (0.5, 0.25, 1)
    assert len(threads) == 2
    assert threading.current_thread().name not in threads


def test_what_a_slow_rule_raises_reaches_the_verdict() -> None:
    class Broken:
        def decide(self, rollout: rf.Rollout) -> rf.Reward | None:
            raise StopIteration("odd")  # which a future cannot carry

    reward = score(Cascade(first=Broken(), then=Judge()), rollouts(UNMARKED))[0]
    assert (reward.value, reward.kind) == (None, "user_error")


def test_a_rule_that_never_ends_is_timed_out_and_holds_nothing_up() -> None:
    async def run() -> rf.Reward:
        never = threading.Event()

        class Stuck:
            def decide(self, rollout: rf.Rollout) -> rf.Reward | None:
                never.wait()
                return None

        async with rf.RewardAgent(Cascade(first=Stuck(), then=Judge()), timeout_s=0.05, max_attempts=1) as agent:
            groups = await agent.submit(rollouts(UNMARKED)).all()
        never.set()
        return groups[0].rewards[0]

    reward = asyncio.run(run())
    assert (reward.value, reward.kind) == (None, "timeout")


@pytest.mark.parametrize("messages", [(), ({"role": "user", "content": "2 + 2?"},)], ids=["text", "chat"])
@pytest.mark.parametrize("first", [GSM8K(), Regex(must="four", unanswered=0.0)])
def test_the_rule_is_asked_once_also_when_the_judge_is_asked_again(first: Any, messages: Any) -> None:
    @dataclass
    class Counted:
        is_quick: bool
        num_asked: int = 0

        def decide(self, rollout: rf.Rollout) -> rf.Reward | None:
            self.num_asked += 1
            return first.decide(rollout)

    rule = Counted(first.is_quick)
    asked = [replace(one, messages=messages) for one in rollouts(UNMARKED)]
    reward = score(Cascade(first=rule, then=Judge(fails=1), ask_above=-1.0), asked, backoff_s=0.01)[0]
    assert (reward.attempts, reward.extras["decided_by"], rule.num_asked) == (2, "judge", 1)


def test_scored_by_hand_or_inside_another_reward_a_cascade_is_both_stages() -> None:
    judge, slow_rule = Judge(), Regex(must=r"#### \d")
    cascades = [Cascade(first=GSM8K(), then=judge), Cascade(first=slow_rule, then=judge, ask_below=1.0)]

    async def by_hand(cascade: Cascade) -> list[rf.Reward]:
        return [await cascade.compute_score(one) for one in rollouts(RIGHT, UNMARKED)]

    async def inside(cascade: Cascade) -> list[rf.Reward]:
        async def wrapped(rollout: rf.Rollout) -> rf.Reward:
            reward: rf.Reward = await cascade.compute_score(rollout)
            return reward

        async with rf.RewardAgent(wrapped, call_cost_usd=9.0) as agent:
            return [group.rewards[0] for group in await agent.submit(rollouts(RIGHT, UNMARKED)).all()]

    for cascade in cascades:
        for way in (by_hand, inside):
            rewards = clock.run(way(cascade))
            assert [(one.value, one.extras["decided_by"]) for one in rewards] == [(1.0, "rule"), (0.7, "judge")]
            assert rewards[0].cost_usd == 0.0
        assert cascade.statistics() == CascadeStatistics(decided_by_rule=2, judge_asked=2)


def test_with_a_plain_judge_a_cascade_is_plain_and_works_in_a_process() -> None:
    cascade = Cascade(first=GSM8K(), then=GSM8K(method="flexible"))
    assert not load_reward(RewardSource.of(cascade)).is_async
    assert cascade.compute_score(rollouts(RIGHT)[0]).value == 1.0
    copy = pickle.loads(pickle.dumps(cascade))
    assert (copy.identities, copy.statistics().decided_by_rule) == (cascade.identities, 0)
    rewards = score(cascade, rollouts(RIGHT, UNMARKED), workers="process", processes=1)
    assert [reward.extras["decided_by"] for reward in rewards] == ["rule", "judge"]


def test_both_stages_are_checked_before_anything_is_sent() -> None:
    class Missing(Judge):
        def check(self) -> None:
            raise InvalidInput("the judge needs a key")

    class Lacking:
        async def check(self) -> None:
            raise InvalidInput("the rule needs a library")

        def decide(self, rollout: rf.Rollout) -> rf.Reward | None:
            return None

    for cascade, says in [
        (Cascade(first=GSM8K(), then=Missing()), "needs a key"),
        (Cascade(first=GSM8K(), then=Cascade(first=GSM8K(), then=Missing())), "needs a key"),
        (Cascade(first=Lacking(), then=Judge()), "needs a library"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            score(cascade, rollouts(RIGHT))


def test_what_the_agent_asks_of_the_judge_goes_through() -> None:
    judge = Judge()
    cascade = Cascade(first=GSM8K(), then=judge)
    loaded = load_reward(RewardSource.of(cascade))
    assert loaded.endpoints == ("http://a", "http://b")
    assert loaded.estimate_tokens is not None
    assert loaded.estimate_tokens(rollouts(UNMARKED)[0]) == 123
    assert loaded.price_problem == judge.price_problem
    assert (loaded.log, loaded.post_process) == (None, None)
    score(cascade, rollouts(RIGHT))
    assert judge.is_closed


def test_a_judge_without_hooks_needs_none() -> None:
    loaded = load_reward(RewardSource.of(Cascade(first=GSM8K(), then=lambda response: 1.0)))
    assert (loaded.estimate_tokens, loaded.endpoints) == (None, ())


def test_other_settings_of_either_stage_are_another_identity() -> None:
    def identity(**changes: Any) -> str:
        cascade = dataclasses.replace(Cascade(first=GSM8K(), then=Judge()), **changes)
        return load_reward(RewardSource.of(cascade)).identity

    changed = [
        identity(first=GSM8K(method="flexible")),
        identity(then=Judge(latency_s=2.0)),
        identity(ask_below=1.0),
        identity(version="2"),
    ]
    assert identity() == identity()
    assert len({identity(), *changed}) == 5


def test_asking_does_not_change_the_identity() -> None:
    cascade = Cascade(first=GSM8K(), then=lambda response: 1.0)
    before = load_reward(RewardSource.of(cascade)).identity
    score(cascade, rollouts(UNMARKED))
    assert load_reward(RewardSource.of(cascade)).identity == before


def test_a_first_stage_without_decide_or_a_second_that_sees_groups_is_refused() -> None:
    with pytest.raises(InvalidInput, match="decide"):
        Cascade(first=lambda response: 1.0, then=Judge())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="whole groups"):
        Cascade(first=GSM8K(), then=lambda solution_strs: [1.0])


def test_cascades_may_follow_each_other() -> None:
    judge = Judge()
    strict_then_pattern = Cascade(first=GSM8K(), then=Cascade(first=Regex(must="four"), then=judge, ask_below=0.5))
    rewards = score(strict_then_pattern, rollouts(RIGHT, UNMARKED, "It is five."))
    assert [reward.value for reward in rewards] == [1.0, 1.0, 0.7]
    assert [reward.extras["decided_by"] for reward in rewards] == ["rule", "rule", "judge"]
    assert [reward.attempts for reward in rewards] == [0, 0, 1]
    assert judge.asked == ["It is five."]
    assert strict_then_pattern.statistics() == CascadeStatistics(decided_by_rule=2, judge_asked=1)


@pytest.mark.parametrize("is_asked_first", [True, False])
def test_a_rule_that_runs_away_fails_its_own_rollout_only(is_asked_first: bool) -> None:
    """Real time: the pattern holds its interpreter until it is killed."""

    async def judge(rollout: rf.Rollout) -> float:
        return 0.5

    cascade = Cascade(first=warm(Regex(must=r"(\w+\s?)+$"), *singles("fine")), then=judge)
    reward: Any = cascade if is_asked_first else cascade.compute_score  # a function has no hook to ask the rule before
    responses = ["a" * 34 + "!", *(f"word {number}" for number in range(20))]
    rewards = rf.score(singles(*responses), reward, timeout_s=5.0, max_attempts=1)
    assert [one.value for one in rewards] == [None, *[1.0] * 20]
    assert rewards[0].kind == "timeout"
    assert "the rule regex" in (rewards[0].error or "")
    assert "was killed" in (rewards[0].error or "")
    cascade.first.close()  # type: ignore[attr-defined]
