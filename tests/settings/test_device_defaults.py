"""What a run file leaves to the device depends on its kind, and what it gives stays."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.flow.schedule import Schedule
from rewardflow.settings.device_defaults import for_device, left_to_device
from rewardflow.settings.run_settings import (
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)


def settings(**changes: Any) -> RunSettings:
    plain = {"reward": "judge.py:f", "data": DataSettings(task="arithmetic"), "schedule": Schedule(groups_per_step=8)}
    return RunSettings(**{**plain, "steps": 1, **changes})


def test_on_a_cpu_nothing_changes() -> None:
    plain = settings()
    assert for_device(plain, "cpu") == plain
    assert plain.trainer.pass_tokens == 16384


def test_an_accelerator_computes_in_bfloat16_and_recomputes_activations() -> None:
    found = for_device(settings(), "accelerator")
    assert found.trainer.autocast == "bfloat16"
    assert found.policy.gradient_checkpointing is True
    assert found.trainer.pass_tokens == 8192
    assert for_device(found, "accelerator") == found


def test_a_pass_of_an_accelerator_holds_the_longest_rollout() -> None:
    long = settings(generation=GenerationSettings(max_prompt_tokens=2048, max_response_tokens=30000))
    assert for_device(long, "accelerator").trainer.pass_tokens == 32048


def test_what_is_given_stays() -> None:
    given = settings(
        trainer=TrainerSettings(autocast="float32", micro_batch_tokens=100, tf32=False),
        policy=PolicySettings(gradient_checkpointing=False),
    )
    assert for_device(given, "accelerator") == given
    assert left_to_device(given, for_device(given, "accelerator"), "accelerator") == {}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cpu", (None, None, 16384)),
        ("accelerator", ("bfloat16", True, 8192, True)),
    ],
)
def test_a_check_says_what_the_device_chooses(kind: Any, expected: tuple[Any, ...]) -> None:
    names = ("trainer.autocast", "policy.gradient_checkpointing", "trainer.micro_batch_tokens", "trainer.tf32")
    chosen = left_to_device(settings(), for_device(settings(), kind), kind)
    assert chosen == dict(zip(names, expected, strict=kind == "accelerator"))
