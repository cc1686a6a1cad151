"""Records of settings keep their rules, however they are made."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.config.tree import (
    AlgorithmSettings,
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)
from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Schedule


def run(**changes: Any) -> RunSettings:
    return RunSettings(
        **{
            "reward": "judge.py:f",
            "data": DataSettings(task="arithmetic"),
            "schedule": Schedule(groups_per_step=8),
            "steps": 1,
            **changes,
        }
    )


def test_a_run_needs_little() -> None:
    assert run().generation.group_size == 8


@pytest.mark.parametrize(
    ("record", "values", "problem"),
    [
        (DataSettings, {"task": "sorting"}, "task must be one of copy_digits, arithmetic, null, got 'sorting'"),
        (DataSettings, {"task": "arithmetic", "path": "x"},
         "exactly one of task, path and dataset must be given, got task, path"),
        (DataSettings, {"path": "x", "limit": 0}, "limit must be a whole number of at least 1"),
        (PolicySettings, {"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        (GenerationSettings, {"overlong_prompts": "cut"}, "overlong_prompts must be one of filter, truncate, error"),
        (GenerationSettings, {"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got top_p=0.0"),
        (GenerationSettings, {"temperature": float("nan")}, "temperature must be a number above 0"),
        (AlgorithmSettings, {"loss": "reinforce"}, "loss must be one of ppo, decoupled, got 'reinforce'"),
        (AlgorithmSettings, {"dual_clip": 1.0}, "dual_clip must be a number above 1"),
        (TrainerSettings, {"autocast": "int8"}, "autocast must be one of float32, bfloat16, float16, null, got 'int8'"),
        (TrainerSettings, {"betas": (0.9, 2.0)}, "betas must be a number of at least 0 and at most 1, got betas=2.0"),
    ],
)  # fmt: skip
def test_a_record_that_breaks_its_rule_cannot_be_made(record: Any, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        record(**values)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"steps": True}, "steps must be a whole number of at least 1"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"reward": "gsm"}, "reward must be a reward file"),
        ({"limits": {"rpm": -1}}, "limits: rpm must be a positive number"),
        ({"generation": GenerationSettings(group_size=1), "schedule": Schedule(groups_per_step=8, min_group=1)},
         "grpo compares the rollouts of a group"),
        ({"schedule": Schedule(groups_per_step=8, min_group=9)}, "schedule.min_group must not exceed"),
        ({"algorithm": AlgorithmSettings(scale="batch"), "schedule": Schedule(groups_per_step=8, stream="micro_batch")},
         "algorithm.scale=batch needs the scores of the whole batch"),
    ],
)  # fmt: skip
def test_what_spans_records_is_checked_by_the_run(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        run(**changes)
    assert str(caught.value).startswith(problem)
