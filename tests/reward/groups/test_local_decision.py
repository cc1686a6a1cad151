"""What a reward can tell by itself takes no slot, no turn of the pace and no money, and is a verdict like any other."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts import singles
from scoring import score

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.groups.local_decision import LocalDeciderStatistics
from rewardflow.services.rules import GSM8K
from rewardflow.types import FailureKind

OPEN = "ask"


@dataclass
class Judge:
    """Decides what is a number, is asked about the rest, and remembers when and what."""

    latency_s: float = 1.0
    asked: list[tuple[str, float]] = field(default_factory=list)
    considered: list[str] = field(default_factory=list)
    decides_quickly: bool = True

    def decide_locally(self, rollout: rf.Rollout) -> dict[str, Any] | None:
        self.considered.append(rollout.response)
        if rollout.response == OPEN:
            return None
        return {"score": float(rollout.response), "decided_by": "rule", "cost_usd": 3.0}

    async def compute_score(self, response: str) -> float:
        self.asked.append((response, asyncio.get_running_loop().time()))
        await asyncio.sleep(self.latency_s)
        return 0.5

    def identity_settings(self) -> str:
        return "always the same, whatever it has seen"


class Slow:
    """Decides in a thread, when it is told to go on."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.considered: list[str] = []
        self.num_ended = 0
        self.asked: list[str] = []

    def decide_locally(self, rollout: rf.Rollout) -> float | None:
        self.considered.append(rollout.response)
        self.started.release()
        self.go_on.wait(10)
        self.num_ended += 1
        return None if rollout.response == OPEN else float(rollout.response)

    async def compute_score(self, response: str) -> float:
        self.asked.append(response)
        return 0.5

    async def wait_for_start(self, count: int = 1) -> None:
        with clock.hold(asyncio.get_running_loop()):
            for _ in range(count):
                assert await asyncio.to_thread(self.started.acquire, timeout=10)


# -- what it saves --


def test_a_decided_rollout_has_no_attempt_no_cost_and_no_call() -> None:
    async def run() -> None:
        judge = Judge()
        async with rf.RewardAgent(judge, call_cost_usd=0.25) as agent:
            groups = await agent.submit(singles("1", OPEN)).all()
            statistics = agent.statistics()
        decided, asked = (group.rewards[0] for group in groups)
        assert (decided.value, decided.attempts, decided.latency_s) == (1.0, 0, 0.0)
        assert (decided.cost_usd, decided.tokens, decided.cached) == (0.0, 0, False)
        assert (asked.value, asked.attempts, asked.cost_usd) == (0.5, 1, 0.25)
        assert judge.asked == [(OPEN, 0.0)]
        assert (statistics.calls, statistics.ledger.spent_usd) == (1, 0.25)
        expected = LocalDeciderStatistics(decided=1, left_open=1, failed=0, waiting=0, running=0, abandoned=0)
        assert list(statistics.deciders.values()) == [expected]

    clock.run(run())


def test_decided_rollouts_take_no_turn_of_the_pace() -> None:
    def last_call_s(num_decided: int) -> float:
        judge = Judge()
        rewards = score(judge, singles(*["1"] * num_decided, *[OPEN] * 5), rpm=60, max_concurrency=1000)
        assert sum(reward.attempts for reward in rewards) == len(judge.asked) == 5
        return judge.asked[-1][1]

    assert last_call_s(num_decided=95) == last_call_s(num_decided=0)
    assert last_call_s(num_decided=95) < 5.0


@pytest.mark.parametrize("has_journal", [False, True])
def test_decided_rollouts_are_delivered_while_the_only_slot_is_taken(has_journal: bool, tmp_path: Path) -> None:
    async def run() -> None:
        journal = tmp_path / "journal.db" if has_journal else None
        judge = Judge(latency_s=1e6)
        async with rf.RewardAgent(judge, max_concurrency=1, timeout_s=None, journal=journal) as agent:
            stuck = agent.submit(rf.Rollout(group_id="stuck", response=OPEN))
            groups = await agent.submit(singles(*map(str, range(200)))).all()
            assert [group.rewards[0].value for group in groups] == [float(i) for i in range(200)]
            assert len(judge.asked) == 1
            stuck.cancel()

    clock.run(run())


def test_decided_rollouts_reserve_no_money() -> None:
    rewards = score(Judge(), singles(*["1"] * 50, OPEN), max_cost_usd=1.0, call_cost_usd=1.0)
    assert all(reward.is_scored for reward in rewards)


def test_a_method_called_decide_is_no_such_hook() -> None:
    """Rules have one, for cascades; as rewards of their own they are called, also in a process if that is wanted."""
    rollout = rf.Rollout(group_id="q", response="#### 4", ground_truth="4")
    assert rf.score([rollout], GSM8K())[0].attempts == 1


# -- a verdict like any other --


@pytest.mark.parametrize(
    ("result", "value", "query"),
    [(1, 1.0, None), ((0.5, "q"), 0.5, "q"), ({"score": 2}, 2.0, None), (rf.Reward(value=3.0, query="q"), 3.0, "q")],
)
@pytest.mark.parametrize("is_quick", [True, False])
def test_every_form_of_result_is_understood(is_quick: bool, result: Any, value: float, query: str | None) -> None:
    reward = score(deciding(lambda rollout: result, is_quick=is_quick), singles("x"))[0]
    assert (reward.value, reward.query, reward.attempts) == (value, query, 0)


def deciding(decide: Callable[[rf.Rollout], Any], *, is_quick: bool = True) -> Any:
    class Deciding:
        decides_quickly = is_quick

        def decide_locally(self, rollout: rf.Rollout) -> Any:
            return decide(rollout)

        def compute_score(self, response: str) -> float:
            raise AssertionError("must not be called")

    return Deciding()


def raises(error: BaseException) -> Callable[[rf.Rollout], Any]:
    def decide(rollout: rf.Rollout) -> Any:
        raise error

    return decide


@pytest.mark.parametrize(
    ("decide", "kind", "says"),
    [
        (raises(KeyError("truth")), "user_error", "decide_locally failed: KeyError: 'truth'"),
        (raises(StopIteration("odd")), "user_error", "StopIteration"),
        (raises(asyncio.CancelledError()), "user_error", "CancelledError"),
        (raises(SystemExit(3)), "user_error", "SystemExit"),
        (raises(TimeoutError()), "user_error", "TimeoutError"),
        (lambda rollout: float("nan"), "unparsable", "nan"),
        (lambda rollout: "good", "unparsable", "'good'"),
        (lambda rollout: {"scored": 1}, "unparsable", "without 'score'"),
    ],
)
@pytest.mark.parametrize("is_quick", [True, False])
def test_a_hook_that_goes_wrong_fails_the_verdict_and_makes_no_call(
    is_quick: bool, decide: Callable[[rf.Rollout], Any], kind: FailureKind, says: str
) -> None:
    reward = score(deciding(decide, is_quick=is_quick), singles("x"))[0]
    assert (reward.value, reward.kind, reward.attempts) == (None, kind, 0)
    assert says in (reward.error or "")


def test_a_group_is_delivered_once_when_its_last_verdict_is_in() -> None:
    async def run() -> None:
        rollouts = [
            rf.Rollout(group_id="q", index=i, group_size=4, response=one)
            for i, one in enumerate(["1", OPEN, "2", OPEN])
        ]
        parts = [rf.Weighted(Judge(), 1.0, name="judge"), rf.Weighted(lambda response: 10.0, 2.0, name="other")]
        async with rf.RewardAgent(parts) as agent:
            (group,) = await agent.submit(rollouts).all()
            assert agent.statistics().verdicts.delivered == 1
        assert [reward.value for reward in group.rewards] == [21.0, 20.5, 22.0, 20.5]
        assert [reward.attempts for reward in group.rewards] == [1, 2, 1, 2]
        assert group.rewards[0].extras == {"judge/decided_by": "rule"}
        assert asyncio.get_running_loop().time() == 1.0

    clock.run(run())


def test_a_resumed_run_gives_the_same_verdicts_and_asks_nobody(tmp_path: Path) -> None:
    options = {"journal": tmp_path / "journal.db", "run": "one"}
    first = score(Judge(), singles("1", OPEN, "nonsense"), **options)
    assert [reward.kind for reward in first] == [None, None, "user_error"]
    judge = Judge()
    second = score(judge, singles("1", OPEN, "nonsense"), **options)
    assert (judge.considered, judge.asked) == ([], [])
    for before, after in zip(first, second, strict=True):
        assert (before.cached, after.cached) == (False, True)
        assert (after.value, after.kind, after.error, after.extras) == (
            before.value, before.kind, before.error, before.extras,
        )  # fmt: skip
    assert second[0].extras == {"decided_by": "rule"}


@pytest.mark.parametrize("has_journal", [False, True])
def test_equal_rollouts_are_decided_once_where_content_is_shared(has_journal: bool, tmp_path: Path) -> None:
    judge = Judge()
    journal = tmp_path / "journal.db" if has_journal else None
    rewards = score(judge, singles("1", "1", OPEN, "1", OPEN), reuse="content", journal=journal)
    assert [reward.value for reward in rewards] == [1.0, 1.0, 0.5, 1.0, 0.5]
    assert sorted(judge.considered) == ["1", OPEN]
    assert [reward.cached for reward in rewards] == [False, True, False, True, True]
    assert len(judge.asked) == 1


def test_when_the_shared_decision_fails_the_next_one_is_tried() -> None:
    answers = iter([float("nan"), 1.0, 2.0])
    rewards = score(deciding(lambda rollout: next(answers)), singles("x", "x", "x"), reuse="content")
    assert [reward.value for reward in rewards] == [None, 1.0, 1.0]


# -- its context --


caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")
noted: contextvars.ContextVar[str] = contextvars.ContextVar("noted", default="nothing")


@pytest.mark.parametrize("is_quick", [True, False])
def test_the_hook_sees_the_submitters_variables_and_the_call_sees_the_hooks(is_quick: bool) -> None:
    class Noting:
        decides_quickly = is_quick

        def decide_locally(self, rollout: rf.Rollout) -> None:
            assert rf.current_call() is None
            noted.set(f"{noted.get()}, {rollout.response} for {caller.get()}")

        async def compute_score(self, response: str) -> dict[str, Any]:
            return {"score": 1.0, "noted": noted.get()}

    caller.set("me")
    rewards = score(Noting(), singles("a", "b"))
    assert [reward.extras for reward in rewards] == [{"noted": "nothing, a for me"}, {"noted": "nothing, b for me"}]
    assert noted.get() == "nothing"


# -- cancelled, closed, halted, hung --


@pytest.mark.parametrize("response", ["1", OPEN])
def test_what_is_cancelled_while_it_is_decided_is_cancelled_at_once_and_never_called(response: str) -> None:
    async def run() -> None:
        slow = Slow()
        async with rf.RewardAgent(slow) as agent:
            ticket = agent.submit(singles(response))
            await slow.wait_for_start()
            ticket.cancel()
            (group,) = await ticket.all()
            assert group.rewards[0].kind == "cancelled"
            slow.go_on.set()
            assert [group.rewards[0].value for group in await agent.submit(singles("3", step=1)).all()] == [3.0]
            assert agent.statistics().verdicts.delivered == 2
            (decider,) = agent.statistics().deciders.values()
        assert slow.asked == []
        assert (decider.decided, decider.left_open, decider.failed) == (1, 0, 0)

    clock.run(run())


def test_what_is_cancelled_while_it_waits_to_be_decided_is_not_decided() -> None:
    async def run() -> None:
        judge = Judge()
        async with rf.RewardAgent(judge) as agent:
            ticket = agent.submit(singles("1", "2"))
            ticket.cancel({"0"})
            assert [group.rewards[0].kind for group in await ticket.all()] == ["cancelled", None]
        assert judge.considered == ["2"]

    clock.run(run())


def test_a_hook_may_cancel_what_it_decides() -> None:
    async def run() -> None:
        tickets: list[rf.Ticket] = []

        def decide(rollout: rf.Rollout) -> float | None:
            tickets[0].cancel()
            return None if rollout.response == OPEN else 1.0

        async with rf.RewardAgent(deciding(decide)) as agent:
            tickets.append(agent.submit(singles("1", OPEN)))
            assert [group.rewards[0].kind for group in await tickets[0].all()] == ["cancelled", "cancelled"]
            (decider,) = agent.statistics().deciders.values()
            assert (decider.decided, decider.left_open, agent.statistics().calls) == (0, 0, 0)

    clock.run(run())


def test_closing_does_not_wait_for_a_decision() -> None:
    async def run() -> list[FailureKind | None]:
        slow = Slow()
        async with rf.RewardAgent(slow, close_timeout_s=3600) as agent:
            ticket = agent.submit(singles(*["1"] * 20))
            await slow.wait_for_start(8)
        assert (len(slow.considered), slow.num_ended) == (8, 0)
        slow.go_on.set()
        return [group.rewards[0].kind for group in await ticket.all()]

    assert clock.run(run()) == ["cancelled"] * 20


def test_an_agent_that_halts_gives_up_what_is_being_decided() -> None:
    async def run() -> None:
        slow = Slow()

        async def dear(response: str) -> float:
            await slow.wait_for_start()
            rf.report_usage(cost_usd=5.0)
            return 1.0

        parts = [rf.Weighted(slow, name="slow"), rf.Weighted(dear, name="dear")]
        async with rf.RewardAgent(parts, max_cost_usd=1.0, max_concurrency=1) as agent:
            ticket = agent.submit(singles("1", "2"))
            with pytest.raises(rf.BudgetExhausted) as halted:
                await ticket.all()
        assert slow.num_ended == 0
        slow.go_on.set()
        assert [group.rewards[0].kind for group in halted.value.groups] == ["budget", "budget"]

    clock.run(run())


def test_a_decision_that_never_ends_is_timed_out_and_its_thread_replaced() -> None:
    async def run() -> None:
        slow = Slow()
        async with rf.RewardAgent(slow, timeout_s=0.05) as agent:
            groups = await agent.submit(singles(*["1"] * 12)).all()
            (decider,) = agent.statistics().deciders.values()
            slow.go_on.set()
        assert {group.rewards[0].kind for group in groups} == {"timeout"}
        assert "decide_locally did not end within 0.05 s" in (groups[0].rewards[0].error or "")
        assert (decider.failed, decider.abandoned, slow.asked) == (12, 12, [])

    asyncio.run(run())


@given(
    responses=st.lists(st.sampled_from(["1", "2", OPEN, "nonsense"]), min_size=1, max_size=150),
    cancelled=st.dictionaries(st.integers(0, 149), st.sampled_from([0.0, 0.5, 1.0, 1.5])),
    closes_at_s=st.sampled_from([0.0, 1.0, 100.0]),
    reuse=st.sampled_from(["sample", "content"]),
)
def test_every_rollout_gets_one_verdict_whatever_is_cancelled_or_shared(
    responses: list[str], cancelled: dict[int, float], closes_at_s: float, reuse: Any
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with rf.RewardAgent(Judge(), max_concurrency=2, reuse=reuse) as agent:
            ticket = agent.submit(singles(*responses))
            for number, at_s in cancelled.items():
                loop.call_at(at_s, ticket.cancel, {str(number)})
            await asyncio.sleep(closes_at_s)
        groups = await ticket.all()
        assert [group.group_id for group in groups] == [str(i) for i in range(len(responses))]
        values = {"1": 1.0, "2": 2.0, OPEN: 0.5, "nonsense": None}
        for response, group in zip(responses, groups, strict=True):
            reward = group.rewards[0]
            assert reward.kind == "cancelled" or reward.value == values[response]
            assert response == OPEN or reward.attempts == 0

    clock.run(run())


# -- order, and the loop --


def test_slow_decisions_run_beside_each_other_off_the_loop() -> None:
    async def run() -> None:
        meeting = threading.Barrier(8, timeout=10)
        reward = deciding(lambda rollout: float(meeting.wait() >= 0), is_quick=False)
        async with rf.RewardAgent(reward) as agent:
            first = agent.submit(singles(*"x" * 3))
            await asyncio.sleep(0)  # those are out when the others come
            rest = agent.submit(singles(*"x" * 5, step=1))
            assert [group.rewards[0].value for group in [*await first.all(), *await rest.all()]] == [1.0] * 8

    clock.run(run())


def test_the_oldest_step_is_decided_first() -> None:
    async def run() -> None:
        judge = Judge()
        async with rf.RewardAgent(judge) as agent:
            tickets = [agent.submit(singles(f"{step}", step=step)) for step in (2, 0, 1)]
            for ticket in tickets:
                await ticket.all()
        assert judge.considered == ["0", "1", "2"]

    clock.run(run())


def test_many_quick_decisions_let_the_loop_do_other_things_in_between() -> None:
    async def run() -> None:
        judge = Judge()
        async with rf.RewardAgent(judge) as agent:
            ticket = agent.submit(singles(*["1"] * 1000))
            assert judge.considered == []  # `submit` returns at once
            turns = 0
            while len(judge.considered) < 1000:
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 10
            await ticket.all()

    clock.run(run())
