"""The learning rate is a function of the step's number."""

import pytest

from rewardflow.settings.run_settings import TrainerSettings
from rewardflow.train.learning_rate import share


def shares(total_steps: int, **settings: object) -> list[float]:
    chosen = TrainerSettings(**settings)  # type: ignore[arg-type]
    return [share(step, total_steps, chosen) for step in range(total_steps + 1)]


def test_a_constant_rate_rises_over_the_warm_up_and_stays() -> None:
    assert shares(5, warmup_steps=3) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_linear_rate_falls_evenly_and_reaches_its_least_share_after_the_last_step() -> None:
    assert shares(4, lr_schedule="linear") == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert shares(4, lr_schedule="linear", min_lr_share=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_a_cosine_rate_is_half_way_down_in_the_middle() -> None:
    assert shares(4, lr_schedule="cosine")[2] == pytest.approx(0.5)
    assert shares(4, lr_schedule="cosine", min_lr_share=0.5)[4] == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_no_step_has_a_rate_of_0_and_the_first_after_the_warm_up_has_all_of_it(schedule: str) -> None:
    found = shares(7, lr_schedule=schedule, warmup_steps=2)
    assert found[2] == 1.0
    assert min(found[:7]) > 0


def test_steps_after_the_last_keep_the_least_share_and_a_warm_up_longer_than_the_run_is_no_mistake() -> None:
    assert share(99, 4, TrainerSettings(lr_schedule="cosine", min_lr_share=0.1)) == pytest.approx(0.1)
    assert share(2, 2, TrainerSettings(lr_schedule="linear", warmup_steps=9)) == pytest.approx(0.3)
