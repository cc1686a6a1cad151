"""Whatever happens to the calls, every rollout gets exactly one verdict. On the clock that jumps."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow import clock

BEHAVIOURS = ("score", "raise", "hang", "nan", "wrong type", "429", "503 once", "swallow cancellation")


@dataclass(frozen=True)
class Plan:
    """What will happen to each rollout, and when."""

    sizes: list[int]
    steps: list[int]
    behaviours: list[str]
    delays_s: list[float]
    slots: int
    hedge: float | None
    cancel_at_s: float | None
    close_at_s: float | None
    one_by_one: bool

    def rollouts(self) -> list[rf.Rollout]:
        return [
            rf.Rollout(group_id=f"g{number}", index=index, group_size=size, response=f"{number}/{index}", step=step)
            for number, (size, step) in enumerate(zip(self.sizes, self.steps, strict=True))
            for index in range(size)
        ]


plans = st.integers(1, 8).flatmap(
    lambda groups: st.builds(
        Plan,
        sizes=st.lists(st.integers(1, 5), min_size=groups, max_size=groups),
        steps=st.lists(st.integers(0, 2), min_size=groups, max_size=groups),
        behaviours=st.lists(st.sampled_from(BEHAVIOURS), min_size=40, max_size=40),
        delays_s=st.lists(st.floats(0.0, 20.0), min_size=40, max_size=40),
        slots=st.integers(1, 6),
        hedge=st.sampled_from([None, 0.5, 0.9]),
        cancel_at_s=st.none() | st.floats(0.0, 30.0),
        close_at_s=st.none() | st.floats(0.0, 30.0),
        one_by_one=st.booleans(),
    )
)


class Judge:
    """Does to each rollout what the plan says, and counts who is inside."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.order = {rollout.response: i for i, rollout in enumerate(plan.rollouts())}
        self.calls: Counter[str] = Counter()
        self.inside = 0
        self.most_inside = 0
        self.started: list[rf.Rollout] = []

    async def compute_score(self, rollout: rf.Rollout) -> object:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.started.append(rollout)
        self.calls[rollout.response] += 1
        try:
            return await self.behave(rollout)
        finally:
            self.inside -= 1

    async def behave(self, rollout: rf.Rollout) -> object:
        number = self.order[rollout.response]
        behaviour = self.plan.behaviours[number]
        await asyncio.sleep(self.plan.delays_s[number])
        is_first = self.calls[rollout.response] == 1
        if behaviour == "hang":
            await asyncio.Event().wait()
        if behaviour == "swallow cancellation":
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    continue
        if behaviour == "raise":
            raise ValueError("a bug")
        if behaviour == "429" and is_first:
            raise rf.RateLimited(retry_after_s=1.0)
        if behaviour == "503 once" and is_first:
            raise rf.ServiceError("down", status=503)
        return {"nan": float("nan"), "wrong type": "ten"}.get(behaviour, float(number))


async def score(plan: Plan, judge: Judge) -> tuple[list[rf.ScoredGroup], rf.AgentStatistics]:
    groups: list[rf.ScoredGroup] = []
    options = {"hedge_quantile": plan.hedge, "hedge_share": 1.0} if plan.hedge else {}
    async with rf.RewardAgent(judge, max_concurrency=plan.slots, timeout_s=30.0, outage_share=None, **options) as agent:
        ticket = agent.open()
        if plan.one_by_one:
            for rollout in plan.rollouts():
                ticket.submit(rollout)
                await asyncio.sleep(0.1)
        else:
            ticket.submit(plan.rollouts())
        ticket.seal()
        loop = asyncio.get_running_loop()
        if plan.cancel_at_s is not None:
            loop.call_later(plan.cancel_at_s, ticket.cancel)
        try:
            async with asyncio.timeout(plan.close_at_s):
                async for group in ticket:
                    groups.append(group)
        except TimeoutError:
            pass
    async for group in ticket:
        groups.append(group)
    return groups, agent.statistics()


@given(plans)
@settings(max_examples=150)
def test_every_rollout_gets_exactly_one_verdict_whatever_happens(plan: Plan) -> None:
    judge = Judge(plan)
    groups, statistics = clock.run(score(plan, judge))
    delivered = [rollout.response for group in groups for rollout in group.rollouts]
    assert sorted(delivered) == sorted(rollout.response for rollout in plan.rollouts())
    for group in groups:
        assert group.is_complete
        assert [rollout.index for rollout in group.rollouts] == list(range(group.group_size))
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            if reward.is_scored:
                assert reward.value == float(judge.order[rollout.response]), "a reward on another's rollout"
            else:
                assert reward.kind in rf.FAILURE_KINDS
    assert statistics.in_flight == 0
    assert statistics.verdicts.pending_groups == 0
    assert judge.most_inside <= plan.slots
    assert judge.inside == 0


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
