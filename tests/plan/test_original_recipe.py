"""The wrappers that make our loop behave as the original did."""

import asyncio
import itertools

import pytest

from rewardflow import clock
from rewardflow.flow.fakes import FakeGenerator, FakePrompts
from rewardflow.flow.records import GroupRequest
from rewardflow.plan.original_recipe import OneBatchReward, OriginalThreadPool, WholeBatchGenerator
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Rollout


class Diary:
    """A reward that notes when its calls start and end."""

    def __init__(self) -> None:
        self.lives: list[tuple[int, float, float]] = []
        self.order: list[tuple[int, int]] = []

    async def compute_score(self, rollout: Rollout) -> float:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await asyncio.sleep(1.0 + rollout.index)
        self.lives.append((rollout.step, started_s, loop.time()))
        self.order.append((int(rollout.group_id), rollout.index))
        return 1.0


def requests(count: int, group_size: int) -> list[GroupRequest]:
    prompts = FakePrompts().take(count)
    return [GroupRequest(number=i, step=0, prompt=prompts[i], group_size=group_size) for i in range(count)]


def test_a_whole_batch_is_handed_over_at_the_end_of_its_generation_with_groups_side_by_side() -> None:
    async def main() -> list[tuple[float, str, int]]:
        loop = asyncio.get_running_loop()
        batch = WholeBatchGenerator(FakeGenerator(rollout_s=1.0))
        backwards = requests(12, 2)[::-1]
        return [(loop.time(), r.group_id, r.index) async for r in batch.generate(backwards)]

    assert clock.run(main()) == [(24.0, str(group), index) for group in range(12) for index in range(2)]


def test_publishing_goes_through_to_the_generator() -> None:
    fake = FakeGenerator()
    clock.run(WholeBatchGenerator(fake).publish(3))
    assert fake.version == 3


@pytest.mark.parametrize("slots", [1, 3, 100])
def test_no_call_of_a_step_starts_before_the_last_of_the_step_before_has_ended(slots: int) -> None:
    diary = Diary()

    async def main() -> None:
        rollouts = [
            Rollout(group_id=str(10 * step + group), index=index, group_size=2, response="", step=step)
            for step in range(3)
            for group in range(4)
            for index in range(2)
        ]
        reward = OneBatchReward(diary, calls_per_step=8)
        async with RewardAgent(reward, max_concurrency=slots, timeout_s=None) as agent:
            await agent.submit(rollouts).all()

    clock.run(main())
    for step in (1, 2):
        last_end_s = max(end_s for number, _, end_s in diary.lives if number == step - 1)
        starts_s = [start_s for number, start_s, _ in diary.lives if number == step]
        assert len(starts_s) == 8
        assert min(starts_s) == last_end_s


@pytest.mark.parametrize("slots", [1, 3, 100])
def test_the_pool_starts_no_batch_before_the_last_call_of_the_batch_before_has_ended(slots: int) -> None:
    diary = judged_by_the_pool(slots)
    for step in (1, 2):
        last_end_s = max(end_s for number, _, end_s in diary.lives if number == step - 1)
        assert min(start_s for number, start_s, _ in diary.lives if number == step) == last_end_s


@pytest.mark.parametrize("slots", [1, 3])
def test_the_pool_has_no_more_calls_out_than_slots(slots: int) -> None:
    lives = judged_by_the_pool(slots).lives
    assert len(lives) == 24
    for _, at_s, _ in lives:
        assert sum(start_s <= at_s < end_s for _, start_s, end_s in lives) <= slots


def test_the_pool_does_not_finish_one_group_after_another() -> None:
    order = [group for group, _ in judged_by_the_pool(1, num_groups=30).order if group < 30]
    neighbours = sum(first == second for first, second in itertools.pairwise(order))
    assert neighbours < 10  # of the 30 pairs that stand side by side when groups are finished one after another


def judged_by_the_pool(slots: int, num_groups: int = 4) -> Diary:
    diary = Diary()

    async def main() -> None:
        rollouts = [
            Rollout(group_id=str(num_groups * step + group), index=index, group_size=2, response="", step=step)
            for step in range(3)
            for group in range(num_groups)
            for index in range(2)
        ]
        reward = OriginalThreadPool(diary, slots=slots, calls_per_step=2 * num_groups)
        async with RewardAgent(reward, max_concurrency=1000, timeout_s=None) as agent:
            await agent.submit(rollouts).all()

    clock.run(main())
    return diary
