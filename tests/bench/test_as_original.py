"""The wrappers that make our loop behave as the original did."""

import asyncio
import random

import pytest

from rewardflow import clock
from rewardflow.bench.critical_path import CallTimes, MicroBatchTime, MiniBatchTimes, StepTimes, critical_path
from rewardflow.bench.schedule_figures import PUBLISHED_CHANGES
from rewardflow.bench.schedules import SCHEDULES
from rewardflow.flow.fakes import FakeGenerator, FakePrompts
from rewardflow.flow.records import GroupRequest
from rewardflow.flow.schedule import Schedule
from rewardflow.plan.as_original import OneBatchAtATime, WholeBatch
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Rollout


class Diary:
    """A reward that notes when its calls start and end."""

    def __init__(self) -> None:
        self.lives: list[tuple[int, float, float]] = []

    async def compute_score(self, rollout: Rollout) -> float:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await asyncio.sleep(1.0 + rollout.index)
        self.lives.append((rollout.step, started_s, loop.time()))
        return 1.0


def requests(count: int, group_size: int) -> list[GroupRequest]:
    prompts = FakePrompts().take(count)
    return [GroupRequest(number=i, step=0, prompt=prompts[i], group_size=group_size) for i in range(count)]


def test_a_whole_batch_is_handed_over_at_the_end_of_its_generation_with_groups_side_by_side() -> None:
    async def main() -> list[tuple[float, str, int]]:
        loop = asyncio.get_running_loop()
        batch = WholeBatch(FakeGenerator(rollout_s=1.0))
        backwards = requests(12, 2)[::-1]
        return [(loop.time(), r.group_id, r.index) async for r in batch.generate(backwards)]

    assert clock.run(main()) == [(24.0, str(group), index) for group in range(12) for index in range(2)]


def test_publishing_goes_through_to_the_generator() -> None:
    fake = FakeGenerator()
    clock.run(WholeBatch(fake).publish(3))
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
        reward = OneBatchAtATime(diary, calls_per_step=8)
        async with RewardAgent(reward, max_concurrency=slots, timeout_s=None) as agent:
            await agent.submit(rollouts).all()

    clock.run(main())
    for step in (1, 2):
        last_end_s = max(end_s for number, _, end_s in diary.lives if number == step - 1)
        starts_s = [start_s for number, start_s, _ in diary.lives if number == step]
        assert len(starts_s) == 8
        assert min(starts_s) == last_end_s


def original_step(seed: int) -> StepTimes:
    """1024 prompts x 5; of 177 s beside the calls, generation may have been 60 and training 117."""
    rng = random.Random(seed)
    return StepTimes(
        generate_s=60.0,
        calls=tuple(
            CallTimes(group=group, index=index, rollout_ended_s=60.0, delay_s=rng.uniform(1.0, 40.0))
            for group in range(1024)
            for index in range(5)
        ),
        log_probs_s=20.0,
        mini_batches=(MiniBatchTimes(micro_batches=(MicroBatchTime(num_groups=256, duration_s=29.0),), update_s=0.25),)
        * 4,
        publish_s=0.0,
    )


def test_at_the_original_sizes_the_changes_are_those_that_were_published_within_5_points() -> None:
    steps = [original_step(seed) for seed in range(6)]
    step_s = {}
    for name in PUBLISHED_CHANGES:
        stream, max_staleness = SCHEDULES[name]
        schedule = Schedule(groups_per_step=1024, mini_batches=4, stream=stream, max_staleness=max_staleness)
        published_s = critical_path(steps, schedule, 256, one_batch_at_a_time=True)
        step_s[name] = (published_s[-2] - published_s[0]) / (len(steps) - 2)
    for name, published in PUBLISHED_CHANGES.items():
        assert step_s[name] / step_s["synchronous"] - 1 == pytest.approx(published, abs=0.05), name
