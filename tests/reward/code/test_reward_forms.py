"""The forms that are declared as types are the forms that the loader accepts: a subclass of each can be loaded."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.reward_forms import (
    AsyncScoreFunction,
    BatchScoreFunction,
    RewardLike,
    ScoreFunction,
    SupportsAclose,
    SupportsClose,
    SupportsComputeScore,
    SupportsDecideLocally,
    SupportsEstimateTokens,
    SupportsLog,
    SupportsPostProcess,
    SupportsScoreGroup,
)
from rewardflow.reward.code.source import RewardSource
from rewardflow.types import Rollout

GROUP = tuple(Rollout(group_id="q", index=index, group_size=2, response="4") for index in (0, 1))


@pytest.mark.parametrize(
    ("form", "unit"), [(ScoreFunction, "rollout"), (AsyncScoreFunction, "rollout"), (BatchScoreFunction, "group")]
)
def test_every_parameter_of_a_form_is_supplied_by_name(form: Any, unit: str) -> None:
    class Reward(form):
        pass

    loaded = load_reward(RewardSource.of(Reward()))
    assert loaded.unit == unit
    assert list(loaded.arguments(GROUP)) == list(inspect.signature(Reward()).parameters)


@pytest.mark.parametrize(
    ("form", "hook"),
    [
        (SupportsPostProcess, "post_process"),
        (SupportsLog, "log"),
        (SupportsDecideLocally, "decide_locally"),
        (SupportsEstimateTokens, "estimate_tokens"),
        (SupportsClose, "close"),
        (SupportsAclose, "close"),
    ],
)
def test_the_loader_finds_the_hook_of_each_form_and_accepts_its_signature(form: Any, hook: str) -> None:
    class Judge(form):
        def compute_score(self, solution_str: str) -> float:
            return 1.0

    assert getattr(load_reward(RewardSource.of(Judge)), hook) is not None


def test_a_class_scores_with_compute_score_or_sees_the_whole_group_with_score_group() -> None:
    class Single(SupportsComputeScore):
        def compute_score(self, solution_str: str) -> float:
            return float(solution_str == "4")

    class Relative(SupportsScoreGroup):
        def score_group(self, rollouts: Sequence[Rollout], /) -> list[float]:
            return [float(rollout.index) for rollout in rollouts]

    single, relative = load_reward(RewardSource.of(Single)), load_reward(RewardSource.of(Relative))
    assert (single.unit, relative.unit) == ("rollout", "group")
    assert single.function(**single.arguments(GROUP[:1])) == 1.0
    assert relative.function(**relative.arguments(GROUP)) == [0.0, 1.0]


def test_a_reward_is_a_name_a_path_a_function_a_class_or_an_instance(tmp_path: Path) -> None:
    file = tmp_path / "judge.py"
    file.write_text("def compute_score(solution_str):\n    return 1.0\n")

    class Judge:
        def compute_score(self, solution_str: str) -> float:
            return 1.0

    def score(solution_str: str) -> float:
        return 1.0

    rewards: list[RewardLike] = [f"{file}:compute_score", file, score, Judge, Judge()]
    for reward in rewards:
        loaded = load_reward(RewardSource.of(reward))
        assert loaded.function(**loaded.arguments(GROUP[:1])) == 1.0
