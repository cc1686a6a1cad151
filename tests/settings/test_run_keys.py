"""The list of all keys."""

from __future__ import annotations

import dataclasses

import pytest

from rewardflow.reward.settings import AGENT_NAMES, LIMIT_NAMES
from rewardflow.settings.run_keys import LIMITS, keys, keys_of, nearest, sections
from rewardflow.settings.run_settings import RunSettings, TrainerSettings, ValidationSettings


def test_every_field_of_every_record_is_a_key_or_a_section() -> None:
    assert {field.name for field in dataclasses.fields(RunSettings)} == {
        *(key.name for key in keys_of("")),
        *(section for section in sections() if section and "." not in section),
    }
    assert {field.name for field in dataclasses.fields(ValidationSettings)} == {
        *(key.field for key in keys_of("validation")),
        "data",
    }
    assert [key.field for key in keys_of("validation.data")] == [key.field for key in keys_of("data")]
    assert {field.name for field in dataclasses.fields(TrainerSettings)} == {
        *(key.field for key in keys_of("trainer")),
        "megatron",
    }
    assert {key.field for key in keys_of(LIMITS)} == {*AGENT_NAMES, *LIMIT_NAMES}


def test_every_key_of_the_tree_is_explained_in_one_line() -> None:
    unexplained = [key.name for key in keys().values() if key.section != LIMITS and not key.explanation]
    assert not unexplained, f"explain them by a comment in the source: {', '.join(unexplained)}"
    assert not [key.name for key in keys().values() if "\n" in key.explanation or "|" in key.explanation]


def test_required_keys_have_no_default() -> None:
    required = [key.name for key in keys().values() if key.is_required]
    assert required == ["reward", "steps", "schedule.groups_per_step", "audit.reward"]  # the last if there is an audit


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("step", "did you mean 'steps'?"),
        ("trainr", "did you mean 'trainer'?"),
        ("lr", "did you mean 'trainer.lr'?"),
        ("trainer.tensor_parallel", "did you mean 'trainer.megatron.tensor_parallel'?"),
        ("trainer.megatron.tensor_paralel", "did you mean 'trainer.megatron.tensor_parallel'?"),
        ("trainer.group_size", "did you mean 'generation.group_size'?"),
        ("trainer.temprature", "did you mean 'generation.temperature'?"),
        ("shedule.min_batches", "did you mean 'schedule.mini_batches'?"),
        ("data.zzz", "there are task, path, dataset, split, prompt_column, answer_column, shuffle, limit, num_digits"),
        (
            "zzz.yyy",
            "there are data, schedule, limits, policy, generation, algorithm, trainer, critic, checkpoint, failures, "
            "metrics, rollouts, validation, audit, vllm, runtime, shared_agent",
        ),
    ],
)
def test_the_nearest_key_is_looked_for_first_at_home_and_then_everywhere(name: str, hint: str) -> None:
    assert nearest(name) == hint
