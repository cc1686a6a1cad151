"""Parts that do not fit each other are refused before a run."""

import pytest
from flow.fake_run import FakeRun, judge_of

from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.flow.flow_parts import Devices
from rewardflow.flow.schedule import Schedule


def test_a_group_that_could_never_be_kept_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidInput, match="min_group=5, group_size=4"):
        FakeRun(Schedule(groups_per_step=2, min_group=5), judge_of(0)).run(steps=1)


def test_a_trainer_of_its_own_device_cannot_compute_behaviour_log_probs() -> None:
    with pytest.raises(InvalidInput, match="choose placement=colocated"):
        FakeRun(Schedule(groups_per_step=2, placement="separate"), judge_of(0), takes_behaviour=True).run(steps=1)


def test_devices_are_shared_or_apart_as_the_schedule_says() -> None:
    async def main() -> None:
        shared = Devices.of(Schedule(groups_per_step=2), sink=None)
        assert shared.are_one
        apart = Devices.of(Schedule(groups_per_step=2, placement="separate"), sink=None)
        assert not apart.are_one
        assert (apart.trainer.name, apart.generator.name) == ("trainer", "generator")

    clock.run(main())
