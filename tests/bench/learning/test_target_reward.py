"""When a run has learnt."""

from __future__ import annotations

import pytest

from rewardflow.bench.learning.target_reward import TARGET, WINDOW, final_reward, reached_step


def test_the_target_is_reached_when_the_mean_of_the_last_steps_is_there() -> None:
    assert reached_step([0.0] * 5 + [1.0] * WINDOW) == 5 + WINDOW - 1  # nine of ten at 1 are 0.9 in the mean
    assert reached_step([1.0] * (WINDOW - 1)) is None
    assert reached_step([TARGET] * WINDOW) == WINDOW
    assert reached_step([0.0, 1.0] * 50) is None


def test_the_final_reward_is_the_mean_of_the_last_steps() -> None:
    assert final_reward([0.0] * 50 + [0.8] * WINDOW) == pytest.approx(0.8)
