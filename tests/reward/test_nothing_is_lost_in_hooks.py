"""Whatever a reward's hooks do, and whenever the agent is closed or its work cancelled meanwhile, nothing is lost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_lives import (
    CLOSE_TIMEOUT_S,
    GRACE_S,
    LEAVING,
    cancel_if_open,
    check_that_it_holds_nothing,
    leave,
    left_as_planned,
    misbehave,
    take_all,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow import clock

LATE_S = 10_000.0  # when all is over, if calls and hooks have a time limit
IMPUTED = -7.0
UNDECIDED = ("cancelled", "budget")

HOOK_BEHAVIOURS = (
    "work",
    "be slow",
    "hang",
    "raise",
    "raise CancelledError",
    "swallow cancellation",
    "return too few",
    "impute",
)
WAITING = ("be slow", "hang", "swallow cancellation")


# -- plans ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hook:
    """One of the optional methods: plain or async, and what its calls do, one after another, then from the start."""

    is_async: bool = True
    behaviours: Sequence[str] = ("work",)


@dataclass(frozen=True)
class PlannedGroup:
    """When its calls are answered, and which of them fail."""

    delay_s: float
    fails: Sequence[bool]


@dataclass(frozen=True)
class Plan:
    groups: list[PlannedGroup]
    num_affordable: int | None  # calls, until the cap halts the agent
    num_tickets: int
    sees_group: bool
    post_process: Hook | None
    log: Hook | None
    close: Hook | None
    timeout_s: float | None
    cancel_at_s: float | None
    close_at_s: float
    leaves_by: str

    def tickets(self) -> list[list[rf.Rollout]]:
        """The rollouts of each ticket, groups dealt out in turn. Each response is its group's number and its index."""
        dealt: list[list[rf.Rollout]] = [[] for _ in range(min(self.num_tickets, len(self.groups)))]
        for number, group in enumerate(self.groups):
            size = len(group.fails)
            dealt[number % len(dealt)] += [
                rf.Rollout(group_id=str(number), index=i, group_size=size, response=f"{number} {i}")
                for i in range(size)
            ]
        return dealt


hooks = st.none() | st.builds(Hook, st.booleans(), st.lists(st.sampled_from(HOOK_BEHAVIOURS), min_size=1, max_size=3))
planned_groups = st.builds(PlannedGroup, st.floats(0.0, 20.0), st.lists(st.booleans(), min_size=1, max_size=3))
plans = st.builds(
    Plan,
    # More than the hooks that run at once, now and then.
    groups=st.lists(planned_groups, min_size=1, max_size=6) | st.builds(lambda group: [group] * 10, planned_groups),
    num_affordable=st.none() | st.none() | st.integers(1, 12),
    num_tickets=st.integers(1, 3),
    sees_group=st.booleans(),
    post_process=hooks,
    log=hooks,
    close=hooks,
    timeout_s=st.sampled_from([None, 3.0, 30.0]),
    cancel_at_s=st.none() | st.floats(0.0, 40.0),
    close_at_s=st.floats(0.0, 40.0) | st.just(LATE_S),
    leaves_by=st.sampled_from(LEAVING),
)


# -- a reward with hooks -------------------------------------------------------------------------------------------


def true_score(response: str) -> float:
    number, index = map(int, response.split())
    return number + (index + 1) / 8


class Judge:
    """Scores as planned. Post-processing doubles, so that a score shows whether it went through it once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rows: list[tuple[str, object]] = []
        self.num_logs = 0
        self.num_inside = 0
        self.num_called: dict[str, int] = {}
        for name, hook, plain, coroutine in (
            ("post_process_scores", plan.post_process, self.double, self.double_slowly),
            ("log_verdicts", plan.log, self.write_down, self.write_down_slowly),
            ("aclose", plan.close, self.end, self.end_slowly),
        ):
            if hook is not None:
                setattr(self, name, coroutine if hook.is_async else plain)
        if plan.sees_group:
            self.score_group = self.score_several

    async def compute_score(self, solution_str: str) -> float:
        number, index = map(int, solution_str.split())
        await asyncio.sleep(self.plan.groups[number].delay_s)
        if self.plan.groups[number].fails[index]:
            raise ValueError("a bug")
        return true_score(solution_str)

    async def score_several(self, rollouts: Sequence[rf.Rollout]) -> list[object]:
        group = self.plan.groups[int(rollouts[0].group_id)]
        await asyncio.sleep(group.delay_s)
        return [None if fails else true_score(one.response) for one, fails in zip(rollouts, group.fails, strict=True)]

    # Each hook twice: a plain one runs in a thread, where only real time passes, so it never waits.

    def double(self, scores: list[float]) -> list[float]:
        behaviour = self.next_behaviour("post_process", self.plan.post_process)
        raise_if_planned(behaviour)
        doubled = [IMPUTED if behaviour == "impute" and math.isnan(one) else 2 * one for one in scores]
        return doubled[1:] if behaviour == "return too few" else doubled

    async def double_slowly(self, scores: list[float]) -> list[float]:
        await self.wait("post_process", self.plan.post_process)
        return self.double(scores)

    def write_down(self, verdicts: list[dict[str, object]]) -> None:
        self.num_logs += 1
        self.rows += [(str(verdict["group_id"]), verdict["score"]) for verdict in verdicts]
        raise_if_planned(self.next_behaviour("log", self.plan.log))

    async def write_down_slowly(self, verdicts: list[dict[str, object]]) -> None:
        self.write_down(verdicts)
        await self.wait("log", self.plan.log)

    def end(self) -> None:
        raise_if_planned(self.next_behaviour("close", self.plan.close))

    async def end_slowly(self) -> None:
        await self.wait("close", self.plan.close)

    async def wait(self, name: str, hook: Hook | None) -> None:
        behaviour = self.next_behaviour(f"wait in {name}", hook)
        self.num_inside += 1
        try:
            if behaviour == "be slow":
                await asyncio.sleep(8.0)
            await misbehave(behaviour)
        finally:
            self.num_inside -= 1

    def next_behaviour(self, name: str, hook: Hook | None) -> str:
        assert hook is not None
        number = self.num_called[name] = self.num_called.get(name, -1) + 1
        return hook.behaviours[number % len(hook.behaviours)]


def raise_if_planned(behaviour: str) -> None:
    if behaviour == "raise":
        raise ValueError("a bug")
    if behaviour == "raise CancelledError":
        raise asyncio.CancelledError


# -- running a plan ------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came out of one life of an agent, by ticket."""

    groups: list[list[rf.ScoredGroup]]
    statistics: rf.AgentStatistics | None = None
    was_all_in: bool = False
    closing_s: float = 0.0
    tickets: list[rf.Ticket] = field(default_factory=list)


async def live(plan: Plan, judge: Judge) -> Outcome:
    """Open an agent, do what the plan says, close it, and take what is left."""
    loop = asyncio.get_running_loop()
    agent = rf.RewardAgent(
        judge,
        timeout_s=plan.timeout_s,
        max_concurrency=64,
        outage_share=None,
        close_timeout_s=CLOSE_TIMEOUT_S,
        max_cost_usd=plan.num_affordable,
        call_cost_usd=1.0,
    )
    batches = plan.tickets()
    outcome = Outcome([[] for _ in batches])
    left_at_s = 0.0
    with left_as_planned():
        async with agent:
            outcome.tickets = [agent.submit(batch) for batch in batches]
            for ticket in outcome.tickets[::2] if plan.cancel_at_s is not None else ():
                loop.call_later(plan.cancel_at_s or 0.0, cancel_if_open, agent, ticket)
            try:
                async with asyncio.timeout(plan.close_at_s):
                    for ticket, taken in zip(outcome.tickets, outcome.groups, strict=True):
                        await take_all(ticket, taken)
                    outcome.was_all_in = True
            except TimeoutError:
                pass
            left_at_s = loop.time()
            await leave(plan.leaves_by)
    outcome.closing_s = loop.time() - left_at_s
    outcome.statistics = agent.statistics()
    for ticket, taken in zip(outcome.tickets, outcome.groups, strict=True):
        await take_all(ticket, taken)
    return outcome


# -- what must hold ------------------------------------------------------------------------------------------------


def check_that_nothing_is_lost(plan: Plan, outcome: Outcome) -> None:
    """Each rollout came out once, from its own ticket, in its place, with a verdict of its own."""
    for batch, groups in zip(plan.tickets(), outcome.groups, strict=True):
        delivered = [rollout.response for group in groups for rollout in group.rollouts]
        assert sorted(delivered) == sorted(rollout.response for rollout in batch)
        for group in groups:
            assert [rollout.index for rollout in group.rollouts] == list(range(group.group_size))
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
                check_reward(plan, rollout, reward, is_cut_short=any(one.kind in UNDECIDED for one in group.rewards))
    assert outcome.statistics is not None
    check_that_it_holds_nothing(outcome.statistics)


def check_reward(plan: Plan, rollout: rf.Rollout, reward: rf.Reward, *, is_cut_short: bool) -> None:
    if not reward.is_scored:
        assert reward.kind in rf.FAILURE_KINDS
    elif reward.imputed:
        assert reward.value == IMPUTED
    else:
        factor = 1 if plan.post_process is None else 2
        own = true_score(rollout.response)
        assert reward.value == factor * own or (is_cut_short and reward.value == own)


@given(plans)
@settings(max_examples=120)
def test_no_hook_can_lose_a_verdict_or_keep_the_agent_from_closing(plan: Plan) -> None:
    judge = Judge(plan)

    outcome = clock.run(live(plan, judge))

    check_that_nothing_is_lost(plan, outcome)
    assert judge.num_inside == 0, "a hook outlived the agent"
    waits_in_close = plan.close is not None and plan.close.is_async and plan.close.behaviours[0] in WAITING
    if plan.close_at_s == LATE_S and plan.timeout_s is not None:
        assert outcome.was_all_in, "a group was held up until the agent closed"
    num_stages = 2 if waits_in_close else 1
    assert outcome.closing_s <= num_stages * (CLOSE_TIMEOUT_S + GRACE_S)


@given(plans)
@settings(max_examples=70)
def test_log_is_told_of_each_ticket_at_most_once_and_tells_the_truth(plan: Plan) -> None:
    judge = Judge(plan)

    outcome = clock.run(live(plan, judge))

    told = [
        [
            (group.group_id, reward.value)
            for group in sorted(groups, key=lambda group: int(group.group_id))
            for reward in group.rewards
        ]
        for groups in outcome.groups
    ]
    rows = judge.rows
    while rows:
        (ticket,) = [ticket for ticket in told if ticket[0][0] == rows[0][0]]
        assert rows[: len(ticket)] == ticket
        rows = rows[len(ticket) :]
        told.remove(ticket)
    if plan.log is not None and outcome.was_all_in and plan.leaves_by != "being cancelled":
        assert told == [], "a ticket ended, and log was not told"
