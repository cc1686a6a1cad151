"""What was delivered is on disk and is not paid for again; what equal rollouts share is asked once; caps hold."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agent_lives import (
    CLOSE_TIMEOUT_S,
    GRACE_S,
    Fate,
    cancel_if_open,
    check_that_it_holds_nothing,
    misbehave,
    numbered_rollouts,
    take_all,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow import clock

UNDECIDED = ("cancelled", "budget", "outage")

BEHAVIOURS = ("score", "raise", "hang", "nan", "429 once", "503 once", "503")


# -- plans ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    """How one agent is used: what is cancelled, and when and how it is left."""

    cancel_at_s: float | None = None
    cancelled: Sequence[str] | None = None
    close_at_s: float | None = None


@dataclass(frozen=True)
class Plan:
    groups: Sequence[Sequence[Fate]]
    form: str = "singly"
    slots: int = 4
    first: Life = Life()
    cap_usd: float | None = None
    down_from_s: float | None = None  # of the first life, which then halts

    def rollouts(self) -> list[rf.Rollout]:
        return numbered_rollouts((len(group), 0) for group in self.groups)

    def fates(self) -> list[Fate]:
        return [fate for group in self.groups for fate in group]


times = st.floats(0.0, 30.0)
# Multiples of a power of two: sums of them are exact, in whatever order.
costs_usd = st.integers(0, 8).map(lambda number: number / 1024)
fates = st.builds(Fate, st.sampled_from(BEHAVIOURS), st.floats(0.0, 8.0), costs_usd)
# Group sizes are powers of two, because each rollout of a call bears an equal part of its cost.
groups = st.sampled_from([1, 2, 4]).flatmap(lambda size: st.lists(fates, min_size=size, max_size=size))
lives = st.builds(Life, st.none() | times, st.none() | st.just(["g0", "g2", "g3"]), st.none() | times)
plans = st.builds(
    Plan,
    groups=st.lists(groups, min_size=1, max_size=6),
    form=st.sampled_from(["singly", "score_group"]),
    slots=st.integers(1, 6),
    first=lives,
    cap_usd=st.none() | st.integers(1, 40).map(lambda number: number / 1024),
    down_from_s=st.none() | st.none() | times,
)


# -- rewards -------------------------------------------------------------------------------------------------------


class Service:
    """Does to each call what the plan says, and remembers the calls and what was paid."""

    def __init__(self, fates: Sequence[Fate], down_from_s: float | None = None) -> None:
        self.fates = fates
        self.down_from_s = math.inf if down_from_s is None else down_from_s
        self.calls: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        self.most_inside: Counter[str] = Counter()
        self.scored: Counter[str] = Counter()
        self.reported_usd = 0.0

    async def answer(self, responses: Sequence[str]) -> list[float]:
        for response in responses:
            self.calls[response] += 1
        with self.one_more_inside(responses[0]):
            fate = self.fates[int(responses[0])]
            self.pay(fate.cost_usd / 2)
            await asyncio.sleep(0)  # a call that is cancelled at this very moment is not out any more
            self.most_inside[responses[0]] = max(self.most_inside[responses[0]], self.inside[responses[0]])
            await asyncio.sleep(fate.delay_s)
            await self.misbehave(fate.behaviour, is_first=self.calls[responses[0]] == 1)
            self.pay(fate.cost_usd / 2)
            self.scored[responses[0]] += fate.behaviour != "nan"
        return [float("nan") if self.fates[int(text)].behaviour == "nan" else int(text) + 0.5 for text in responses]

    @contextmanager
    def one_more_inside(self, response: str) -> Iterator[None]:
        self.inside[response] += 1
        try:
            yield
        finally:
            self.inside[response] -= 1

    def pay(self, cost_usd: float) -> None:
        rf.report_usage(cost_usd=cost_usd)
        self.reported_usd += cost_usd

    async def misbehave(self, behaviour: str, *, is_first: bool) -> None:
        if asyncio.get_running_loop().time() >= self.down_from_s:
            raise rf.ServiceError("down for good", status=503)
        await misbehave(behaviour, is_first=is_first)


class Singly:
    """Passed as a class, with the service as a class attribute, so that its identity is the same in every life."""

    service: ClassVar[Service]

    async def compute_score(self, solution_str: str) -> float:
        (score,) = await self.service.answer([solution_str])
        return score


class Grouped:
    service: ClassVar[Service]

    async def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[float]:
        return await self.service.answer([rollout.response for rollout in rollouts])


JUDGES: dict[str, type[Singly] | type[Grouped]] = {"singly": Singly, "score_group": Grouped}


# -- running a plan ------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came out of one life of an agent."""

    groups: list[rf.ScoredGroup] = field(default_factory=list)
    halted: rf.AgentHalted | None = None
    statistics: rf.AgentStatistics | None = None
    closing_s: float = 0.0

    def rewards(self) -> dict[tuple[str, int], rf.Reward]:
        return {
            (rollout.group_id, rollout.index): reward
            for group in self.groups
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
        }


def live(judge: Any, service: Service, rollouts: Sequence[rf.Rollout], life: Life, **options: Any) -> Outcome:
    """One agent from its beginning to its end, on a clock of its own."""
    Singly.service = Grouped.service = service
    outcome = Outcome()
    settings: dict[str, Any] = {"timeout_s": 10.0, "outage_share": None, "close_timeout_s": CLOSE_TIMEOUT_S, **options}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with rf.RewardAgent(judge, **settings) as agent:
            ticket = agent.submit(rollouts)
            if life.cancel_at_s is not None:
                loop.call_later(life.cancel_at_s, cancel_if_open, agent, ticket, life.cancelled)
            try:
                async with asyncio.timeout(life.close_at_s):
                    outcome.halted = await take_all(ticket, outcome.groups)
            except TimeoutError:
                pass
            left_at_s = loop.time()
        outcome.closing_s = loop.time() - left_at_s
        outcome.halted = await take_all(ticket, outcome.groups) or outcome.halted
        outcome.statistics = agent.statistics()

    clock.run(main())
    check_that_nothing_is_lost(outcome, rollouts)
    assert not any(service.inside.values())
    return outcome


def check_that_nothing_is_lost(outcome: Outcome, rollouts: Sequence[rf.Rollout]) -> None:
    """Each rollout came out once, in its place, with one verdict of its own; and the agent holds nothing any more."""
    delivered = [(rollout.group_id, rollout.index) for group in outcome.groups for rollout in group.rollouts]
    assert sorted(delivered) == sorted((rollout.group_id, rollout.index) for rollout in rollouts)
    for group in outcome.groups:
        assert [rollout.index for rollout in group.rollouts] == list(range(group.group_size))
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            assert reward.value in (None, int(rollout.response) + 0.5), "a reward on another's rollout"
            assert reward.is_scored or reward.kind in rf.FAILURE_KINDS
    assert outcome.statistics is not None
    check_that_it_holds_nothing(outcome.statistics)
    assert outcome.closing_s <= CLOSE_TIMEOUT_S + GRACE_S


@contextmanager
def journal_file() -> Iterator[Path]:
    """A new folder for each example, where pytest's `tmp_path` is one for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "run.db"


# -- resuming ------------------------------------------------------------------------------------------------------


@given(plans)
@settings(max_examples=40)
def test_a_second_agent_on_the_same_journal_repeats_what_was_delivered_and_asks_for_the_rest(plan: Plan) -> None:
    rollouts, judge = plan.rollouts(), JUDGES[plan.form]
    with journal_file() as path:
        before = Service(plan.fates(), plan.down_from_s)
        options: dict[str, Any] = {"max_concurrency": plan.slots, "journal": path}
        if plan.down_from_s is None:
            guard: dict[str, Any] = {}
        else:
            guard = {"outage_share": 0.8, "outage_window": 3, "outage_give_up_s": 5.0}
        first = live(judge, before, rollouts, plan.first, max_cost_usd=plan.cap_usd, **guard, **options)
        after = Service(plan.fates())
        second = live(judge, after, rollouts, Life(), **options)

    replayed = second.rewards()
    for rollout in rollouts:
        place = (rollout.group_id, rollout.index)
        was, now = first.rewards()[place], replayed[place]
        if was.kind in UNDECIDED:
            assert after.calls[rollout.response] > 0, f"{was.kind} decides nothing, and it was not asked again"
        else:
            assert after.calls[rollout.response] == 0, "a delivered verdict was paid for twice"
            assert (now.value, now.kind, now.error, now.cached) == (was.value, was.kind, was.error, True)
    assert second.statistics is not None
    assert second.statistics.ledger.spent_usd == before.reported_usd + after.reported_usd


# -- equal rollouts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwinPlan:
    """Groups of rollouts of which many are equal: a number stands for what the rollout says."""

    contents: Sequence[Sequence[int]]
    fates: Sequence[Fate]
    slots: int
    life: Life
    has_journal: bool

    def rollouts(self) -> list[rf.Rollout]:
        """One group size for all of them: it is part of the content."""
        size = max(len(group) for group in self.contents)
        return [
            rf.Rollout(group_id=f"g{number}", index=i, group_size=size, response=str(group[i % len(group)]))
            for number, group in enumerate(self.contents)
            for i in range(size)
        ]


twin_plans = st.builds(
    TwinPlan,
    contents=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=6),
    fates=st.lists(fates, min_size=3, max_size=3),
    slots=st.integers(1, 6),
    life=lives,
    has_journal=st.booleans(),
)


@given(twin_plans)
@settings(max_examples=60)
def test_of_equal_rollouts_one_is_asked_about_and_a_score_serves_all(plan: TwinPlan) -> None:
    service = Service(plan.fates)
    rollouts = plan.rollouts()
    with journal_file() as path:
        options = {"max_concurrency": plan.slots, "reuse": "content", "journal": path if plan.has_journal else None}
        first = live(Singly, service, rollouts, plan.life, **options)
        was_scored = +service.scored
        if plan.has_journal:
            live(Singly, service, rollouts, Life(), **options)

    assert max(service.most_inside.values(), default=0) <= 1, "equal rollouts were out at the same time"
    assert max(service.scored.values(), default=0) <= 1, "a content that was scored was asked about again"
    paid = [reward for reward in first.rewards().values() if reward.is_scored and not reward.cached]
    assert len(paid) <= was_scored.total()


# -- money ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CappedPlan:
    """Calls that cost at most `bound_usd`, under a cap, in as many lives as there are."""

    groups: Sequence[Sequence[Fate]]
    form: str
    slots: int
    bound_usd: float
    cap_usd: float
    num_parts: int
    lives: Sequence[Life]


capped_plans = st.builds(
    CappedPlan,
    groups=st.lists(groups, min_size=1, max_size=6),
    form=st.sampled_from(["singly", "score_group"]),
    slots=st.integers(1, 6),
    bound_usd=st.integers(8, 12).map(lambda number: number / 1024),
    cap_usd=st.integers(1, 100).map(lambda number: number / 1024),
    num_parts=st.integers(1, 2),
    lives=st.lists(lives, min_size=1, max_size=3),
)


@given(capped_plans)
@settings(max_examples=40)
def test_what_is_spent_never_passes_the_cap_in_all_lives_of_a_run_together(plan: CappedPlan) -> None:
    described = Plan(plan.groups)
    service = Service(described.fates())
    parts = [rf.Weighted(JUDGES[plan.form], 1.0 / plan.num_parts, name) for name in ["a", "b"][: plan.num_parts]]
    with journal_file() as path:
        for life in plan.lives:
            outcome = live(
                parts,
                service,
                described.rollouts(),
                life,
                max_concurrency=plan.slots,
                journal=path,
                max_cost_usd=plan.cap_usd,
                call_cost_usd=plan.bound_usd,
            )
            assert outcome.statistics is not None
            assert outcome.statistics.ledger.spent_usd <= plan.cap_usd * (1 + 1e-9)
            assert service.reported_usd <= plan.cap_usd * (1 + 1e-9)
            is_short = any(reward.kind == "budget" for reward in outcome.rewards().values())
            assert is_short == isinstance(outcome.halted, rf.BudgetExhausted)


@given(plans)
@settings(max_examples=70)
def test_spent_is_what_the_calls_reported_and_no_reward_costs_more_than_its_calls(plan: Plan) -> None:
    service = Service(plan.fates())
    outcome = live(JUDGES[plan.form], service, plan.rollouts(), plan.first, max_concurrency=plan.slots)
    assert outcome.statistics is not None
    assert outcome.statistics.ledger.spent_usd == service.reported_usd
    assert sum(reward.cost_usd for reward in outcome.rewards().values()) == pytest.approx(service.reported_usd)
