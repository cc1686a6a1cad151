"""Whatever happens to the calls, every rollout gets exactly one verdict. On the clock that jumps."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from agent_lives import (
    CLOSE_TIMEOUT_S,
    GRACE_S,
    LEAVING,
    TAKING,
    Fate,
    Leaving,
    cancel_if_open,
    check_that_it_holds_nothing,
    leave,
    left_as_planned,
    misbehave,
    numbered_rollouts,
    take_all,
)
from hypothesis import event, given, settings
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow import clock

BEHAVIOURS = (
    "score",
    "raise",
    "hang",
    "nan",
    "wrong type",
    "429 once",
    "503 once",
    "503",
    "raise CancelledError",
    "swallow cancellation",
    "answer when cancelled",
)


# -- plans ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedGroup:
    step: int
    fates: list[Fate]


@dataclass(frozen=True)
class Part:
    """One of the rewards that are added up, and how it is called."""

    form: str = "singly"
    weight: float = 1.0


@dataclass(frozen=True)
class Cancel:
    at_s: float
    group_ids: list[str] | None = None


@dataclass(frozen=True)
class Plan:
    """What will happen to each rollout, and when."""

    groups: list[PlannedGroup]
    parts: Sequence[Part] = (Part(),)
    one_account: bool = False
    slots: int = 1
    hedge: float | None = None
    verdict_timeout_s: float | None = None
    cancels: Sequence[Cancel] = ()
    close_at_s: float | None = None
    leaves_by: str = "the end of the block"
    takes: str = "one by one"
    one_by_one: bool = False

    def rollouts(self) -> list[rf.Rollout]:
        return numbered_rollouts((len(group.fates), group.step) for group in self.groups)


# Calls are hedged once 20 have been scored.
WARM_UP = [PlannedGroup(0, [Fate("score", 1.0)])] * 20

times = st.floats(0.0, 30.0)
# Multiples of a power of two: sums of them are exact, in whatever order.
fates = st.builds(Fate, st.sampled_from(BEHAVIOURS), st.floats(0.0, 20.0), st.integers(0, 8).map(lambda n: n / 1024))
planned_groups = st.builds(PlannedGroup, st.integers(0, 2), st.lists(fates, min_size=1, max_size=5))
parts = st.builds(Part, st.sampled_from(["singly", "score_group", "plural"]), st.sampled_from([1.0, 0.5, -2.0]))
plans = st.builds(
    Plan,
    groups=st.lists(planned_groups, min_size=1, max_size=8),
    parts=st.lists(parts, min_size=1, max_size=2),
    one_account=st.booleans(),
    slots=st.integers(1, 6),
    hedge=st.sampled_from([None, 0.5, 0.9]),
    verdict_timeout_s=st.none() | st.floats(1.0, 60.0),
    cancels=st.lists(st.builds(Cancel, times, st.none() | st.just(["g0", "g2", "no such group"])), max_size=2),
    close_at_s=st.none() | times,
    leaves_by=st.sampled_from(LEAVING),
    takes=st.sampled_from(TAKING),
    one_by_one=st.booleans(),
)


# -- rewards -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Meter:
    """Counts who is inside an account, and what was paid there."""

    inside: int = 0
    most_inside: int = 0
    reported_usd: float = 0.0

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            yield
        finally:
            self.inside -= 1


class Service:
    """Does to each call what the plan says."""

    def __init__(self, fates: Sequence[Fate], meter: Meter) -> None:
        self.fates = fates
        self.meter = meter
        self.calls: Counter[str] = Counter()

    async def answer(self, responses: Sequence[str]) -> list[object]:
        """Judge the responses of one call: each gets its own number, plus a half to tell it from the response."""
        fate = self.fates[int(responses[0])]
        self.calls[responses[0]] += 1
        with self.meter.one_more():
            self.pay(fate)
            await asyncio.sleep(fate.delay_s)
            await self.misbehave(fate.behaviour, is_first=self.calls[responses[0]] == 1)
            self.pay(fate)
        odd: dict[str, object] = {"nan": float("nan"), "wrong type": "ten"}
        return [odd.get(self.fates[int(text)].behaviour, int(text) + 0.5) for text in responses]

    def pay(self, fate: Fate) -> None:
        """Once when a call begins and once when it is answered, so that one that was cut short is half paid."""
        rf.report_usage(cost_usd=fate.cost_usd)
        self.meter.reported_usd += fate.cost_usd

    async def misbehave(self, behaviour: str, *, is_first: bool) -> None:
        await misbehave(behaviour, is_first=is_first)


@dataclass(frozen=True)
class Singly:
    service: Service

    async def compute_score(self, solution_str: str) -> object:
        (answer,) = await self.service.answer([solution_str])
        return answer


@dataclass(frozen=True)
class Grouped:
    service: Service

    async def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[object]:
        return await self.service.answer([rollout.response for rollout in rollouts])


@dataclass(frozen=True)
class Plural:
    service: Service

    async def compute_score(self, solution_strs: list[str]) -> list[object]:
        return await self.service.answer(solution_strs)


JUDGES: dict[str, Callable[[Service], Any]] = {"singly": Singly, "score_group": Grouped, "plural": Plural}


# -- running a plan ------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came out of one life of an agent."""

    groups: list[rf.ScoredGroup]
    agent: rf.RewardAgent
    left_at_s: float = 0.0
    closed_at_s: float = 0.0

    @property
    def statistics(self) -> rf.AgentStatistics:
        return self.agent.statistics()


async def live(agent: rf.RewardAgent, plan: Plan) -> Outcome:
    """Open the agent, do what the plan says, close it, and take what is left."""
    loop, outcome = asyncio.get_running_loop(), Outcome([], agent)
    with left_as_planned():
        async with agent:
            ticket = agent.open()
            try:
                async with asyncio.timeout(plan.close_at_s):
                    for cancel in plan.cancels:
                        loop.call_later(cancel.at_s, cancel_if_open, agent, ticket, cancel.group_ids)
                    await submit(ticket, plan.rollouts(), one_by_one=plan.one_by_one)
                    ticket.seal()
                    await take_all(ticket, outcome.groups, plan.takes)
            except TimeoutError:
                pass
            except rf.IncompleteGroup:
                event("cancelled while its rollouts came")
            outcome.left_at_s = loop.time()
            await leave(plan.leaves_by)
    outcome.closed_at_s = loop.time()
    await take_all(ticket, outcome.groups)
    return outcome


async def submit(ticket: rf.Ticket, rollouts: Sequence[rf.Rollout], *, one_by_one: bool) -> None:
    if not one_by_one:
        ticket.submit(rollouts)
        return
    for rollout in rollouts:
        ticket.submit(rollout)
        await asyncio.sleep(0.1)


def check_that_nothing_is_lost(outcome: Outcome, num_submitted: int) -> None:
    """Each rollout came out once, in its place, with one verdict; and the agent holds nothing any more."""
    delivered = [int(rollout.response) for group in outcome.groups for rollout in group.rollouts]
    assert sorted(delivered) == list(range(num_submitted))
    for group in outcome.groups:
        indices = [rollout.index for rollout in group.rollouts]
        assert indices == sorted(indices)
        assert len(group.rewards) == len(group.rollouts)
        for reward in group.rewards:
            assert reward.is_scored or reward.kind in rf.FAILURE_KINDS
    assert outcome.statistics.verdicts.submitted == num_submitted
    check_that_it_holds_nothing(outcome.statistics)
    assert outcome.closed_at_s - outcome.left_at_s <= CLOSE_TIMEOUT_S + GRACE_S


# -- the calls -----------------------------------------------------------------------------------------------------


@given(plans)
@settings(max_examples=120)
def test_every_rollout_gets_exactly_one_verdict_whatever_happens(plan: Plan) -> None:
    if plan.hedge:
        plan = dataclasses.replace(plan, groups=[*WARM_UP, *plan.groups])
    fates = [fate for group in plan.groups for fate in group.fates]
    meters = [Meter()] * 2 if plan.one_account else [Meter(), Meter()]
    services = [Service(fates[number:] + fates[:number], meters[number]) for number in range(len(plan.parts))]
    options: dict[str, Any] = {"hedge_quantile": plan.hedge, "hedge_share": 1.0} if plan.hedge else {}
    agent = rf.RewardAgent(
        [
            rf.Weighted(JUDGES[part.form](service), part.weight, str(number), account="a" if plan.one_account else None)
            for number, (part, service) in enumerate(zip(plan.parts, services, strict=True))
        ],
        max_concurrency=plan.slots,
        timeout_s=30.0,
        verdict_timeout_s=plan.verdict_timeout_s,
        outage_share=None,
        close_timeout_s=CLOSE_TIMEOUT_S,
        **options,
    )

    outcome = clock.run(live(agent, plan))

    check_that_nothing_is_lost(outcome, agent.statistics().verdicts.submitted)
    weight = sum(part.weight for part in plan.parts)
    for group in outcome.groups:
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            expected = weight * (int(rollout.response) + 0.5)
            assert reward.value in (None, expected), "a reward on another's rollout"
    assert all(meter.inside == 0 and meter.most_inside <= plan.slots for meter in meters)
    assert outcome.statistics.ledger.spent_usd == sum(meter.reported_usd for meter in set(meters))


@pytest.mark.parametrize("leaves_by", LEAVING)
@pytest.mark.parametrize("num_turns", range(6))
def test_an_agent_that_is_left_in_any_turn_of_the_loop_holds_nothing(num_turns: int, leaves_by: str) -> None:
    plan = Plan([PlannedGroup(0, [Fate(delay_s=1.0)] * 2)] * 2)
    agent = rf.RewardAgent(Singly(Service([Fate(delay_s=1.0)] * 4, Meter())), max_concurrency=3)
    outcome = Outcome([], agent)

    async def main() -> None:
        with contextlib.suppress(Leaving, asyncio.CancelledError):
            async with agent:
                ticket = agent.submit(plan.rollouts())
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                await leave(leaves_by)
        await take_all(ticket, outcome.groups)

    clock.run(main())
    check_that_nothing_is_lost(outcome, 4)


# -- groups that stay incomplete -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TornGroup:
    """Which of a group's rollouts never come."""

    size: int
    missing: set[int]
    delay_s: float


@dataclass(frozen=True)
class TornPlan:
    """Groups that come one rollout at a time, mixed with each other, and not all of them whole."""

    groups: list[TornGroup]
    order: list[int]
    pause_s: float
    part: Part
    takes: str
    comes_late: bool

    def rollouts(self, *, missing: bool) -> list[rf.Rollout]:
        """What is submitted, in the plan's order; or what is missing. Each response is its number."""
        all_of_them = [
            (i in group.missing, rf.Rollout(group_id=f"g{number}", index=i, group_size=group.size, response=""))
            for number, group in enumerate(self.groups)
            for i in range(group.size)
        ]
        shuffled = sorted(enumerate(all_of_them), key=lambda entry: self.order[entry[0] % len(self.order)])
        ordered = [one for is_missing in (False, True) for _, one in shuffled if one[0] is is_missing]
        numbered = [
            (is_missing, dataclasses.replace(one, response=str(i))) for i, (is_missing, one) in enumerate(ordered)
        ]
        return [rollout for is_missing, rollout in numbered if is_missing is missing]

    def expected_missing(self) -> dict[str, tuple[int, ...]]:
        """By group; a group of which nothing came is not known to be missing."""
        return {
            f"g{number}": tuple(sorted(group.missing))
            for number, group in enumerate(self.groups)
            if 0 < len(group.missing) < group.size
        }


torn_groups = st.integers(1, 4).flatmap(
    lambda size: st.builds(TornGroup, st.just(size), st.sets(st.integers(0, size - 1)), st.floats(0.0, 20.0))
)
torn_plans = st.builds(
    TornPlan,
    groups=st.lists(torn_groups, min_size=1, max_size=5),
    order=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    pause_s=st.sampled_from([0.0, 0.1, 5.0]),
    part=parts,
    takes=st.sampled_from(TAKING),
    comes_late=st.booleans(),
)


async def live_torn(agent: rf.RewardAgent, plan: TornPlan, outcome: Outcome) -> None:
    loop = asyncio.get_running_loop()
    async with agent:
        with agent.open() as ticket:
            for rollout in plan.rollouts(missing=False):
                ticket.submit(rollout)
                await asyncio.sleep(plan.pause_s)
        expected = plan.expected_missing()
        if expected:
            with pytest.raises(rf.IncompleteGroup) as caught:
                await take_all(ticket, outcome.groups, plan.takes)
            for name, indices in expected.items():
                assert f"{name!r} lacks index {', '.join(map(str, indices))}" in str(caught.value)
            assert dict(ticket.missing) == expected
            assert ticket.num_pending == len(expected), "the error came before the last complete group"
            with contextlib.suppress(rf.IncompleteGroup):  # what was ready while more was waited for
                await take_all(ticket, outcome.groups)
            assert all(group.is_complete for group in outcome.groups)
            assert len(outcome.groups) == sum(not group.missing for group in plan.groups)
        if plan.comes_late:
            late = agent.submit(plan.rollouts(missing=True))
            await take_all(late, outcome.groups)
        if plan.comes_late or not expected:
            await take_all(ticket, outcome.groups)
        outcome.left_at_s = loop.time()
    outcome.closed_at_s = loop.time()
    await take_all(ticket, outcome.groups)


@given(torn_plans)
@settings(max_examples=80)
def test_a_sealed_ticket_names_exactly_what_is_missing_and_still_gives_every_complete_group(plan: TornPlan) -> None:
    rollouts = plan.rollouts(missing=False) + plan.rollouts(missing=True)
    delays_s = [plan.groups[int(rollout.group_id[1:])].delay_s for rollout in rollouts]
    service = Service([Fate("score", delay_s) for delay_s in delays_s], Meter())
    agent = rf.RewardAgent(JUDGES[plan.part.form](service), max_concurrency=2, timeout_s=30.0)
    outcome = Outcome([], agent)

    clock.run(live_torn(agent, plan, outcome))

    check_that_nothing_is_lost(outcome, len(rollouts) if plan.comes_late else len(plan.rollouts(missing=False)))
    for group in outcome.groups:
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            assert reward.value in (None, int(rollout.response) + 0.5)
            if group.is_complete:
                assert reward.is_scored


# -- endpoints that fail -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Down:
    """When an endpoint does not work, and how that shows."""

    since_s: float
    for_s: float
    behaviour: str


@dataclass(frozen=True)
class EndpointPlan:
    endpoints: list[list[Down]]
    delays_s: list[float]
    num_rollouts: int
    group_size: int
    slots: int
    form: str
    give_up_s: float
    close_at_s: float | None


downs = st.builds(Down, st.floats(0.0, 60.0), st.floats(0.0, 200.0), st.sampled_from(["503", "hang", "429", "raise"]))
endpoint_plans = st.builds(
    EndpointPlan,
    endpoints=st.lists(st.lists(downs, max_size=2), min_size=1, max_size=3),
    delays_s=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=5),
    num_rollouts=st.integers(1, 30),
    group_size=st.integers(1, 4),
    slots=st.integers(1, 6),
    form=st.sampled_from(sorted(JUDGES)),
    give_up_s=st.sampled_from([0.0, 20.0, 600.0]),
    close_at_s=st.none() | st.floats(0.0, 100.0),
)


class Deployments(Service):
    """A service with several endpoints, each down at its times."""

    def __init__(self, plan: EndpointPlan) -> None:
        super().__init__([Fate("score", delay_s) for delay_s in plan.delays_s] * 120, Meter())
        self.plan = plan

    async def misbehave(self, behaviour: str, *, is_first: bool) -> None:
        call = rf.current_call()
        assert call is not None
        assert call.endpoint is not None
        now = asyncio.get_running_loop().time()
        for down in self.plan.endpoints[int(call.endpoint)]:
            if down.since_s <= now < down.since_s + down.for_s:
                await super().misbehave(down.behaviour, is_first=True)


@given(endpoint_plans)
@settings(max_examples=70)
def test_nothing_is_lost_when_endpoints_fail_and_come_back_or_do_not(plan: EndpointPlan) -> None:
    service = Deployments(plan)
    num_groups = -(-plan.num_rollouts // plan.group_size)
    group = PlannedGroup(0, [Fate()] * plan.group_size)
    life = Plan([group] * num_groups, close_at_s=plan.close_at_s)
    agent = rf.RewardAgent(
        JUDGES[plan.form](service),
        max_concurrency=plan.slots,
        timeout_s=15.0,
        endpoints=[str(number) for number in range(len(plan.endpoints))],
        outage_window=4,
        outage_give_up_s=plan.give_up_s,
        close_timeout_s=CLOSE_TIMEOUT_S,
    )

    outcome = clock.run(live(agent, life))

    check_that_nothing_is_lost(outcome, num_groups * plan.group_size)
    assert service.meter.inside == 0
    assert service.meter.most_inside <= plan.slots
    for scored in outcome.groups:
        for rollout, reward in zip(scored.rollouts, scored.rewards, strict=True):
            assert reward.value in (None, int(rollout.response) + 0.5)


# -- their order ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.lists(st.floats(0.1, 9.0), min_size=48, max_size=48),
)
def test_older_steps_are_never_overtaken_and_groups_go_one_after_another(
    groups: list[tuple[int, int]], slots: int, delays_s: list[float]
) -> None:
    started: list[tuple[int, int, int]] = []

    async def judge(rollout: rf.Rollout) -> float:
        started.append((rollout.step, int(rollout.group_id), rollout.index))
        await asyncio.sleep(delays_s[len(started) - 1])
        return 0.0

    async def main() -> None:
        async with rf.RewardAgent(judge, max_concurrency=slots) as agent:
            await agent.submit(
                rf.Rollout(group_id=str(number), index=index, group_size=size, response="", step=step)
                for number, (step, size) in enumerate(groups)
                for index in range(size)
            ).all()

    clock.run(main())
    assert started == sorted(started)


def test_a_new_batch_of_an_older_step_goes_before_what_still_waits_of_a_newer_one() -> None:
    started: list[int] = []

    async def judge(rollout: rf.Rollout) -> float:
        started.append(rollout.step)
        await asyncio.sleep(1.0)
        return 0.0

    async def main() -> None:
        async with rf.RewardAgent(judge, max_concurrency=1) as agent:
            newer = agent.submit(rf.Rollout(group_id=str(i), response="", step=1) for i in range(3))
            await asyncio.sleep(0.5)
            older = agent.submit(rf.Rollout(group_id=str(i), response="", step=0) for i in range(2))
            await older.all()
            await newer.all()

    clock.run(main())
    assert started == [1, 0, 0, 1, 1]
