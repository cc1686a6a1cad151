"""Fills in what a run file leaves to the device: precision, activations, and the size of a pass.

Always true: a value that the user gave stays; on a CPU nothing changes; a value depends on the kind of device and on
the other settings alone, so every process of a run finds the same one. A pass is given its largest size here; where the
memory of the device is known, `runtime.memory_plan.complete_for` makes it smaller, once for all processes of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from rewardflow.settings.run_settings import RunSettings

PASS_TOKENS_KEY = "trainer.micro_batch_tokens"

DeviceKind = Literal["cpu", "accelerator"]

_ACCELERATOR_PASS_TOKENS = 8192  # keep an accelerator busy; more take more memory and hardly less time


def for_device(settings: RunSettings, kind: DeviceKind) -> RunSettings:
    """Returns the settings with a value for everything that they leave to the device."""
    if kind == "cpu":
        return settings
    trainer, policy = settings.trainer, settings.policy
    if trainer.autocast is None:
        trainer = replace(trainer, autocast="bfloat16")
    if trainer.micro_batch_tokens is None:
        trainer = replace(trainer, micro_batch_tokens=max(_ACCELERATOR_PASS_TOKENS, longest_row(settings)))
    if policy.gradient_checkpointing is None:
        policy = replace(policy, gradient_checkpointing=True)
    return replace(settings, trainer=trainer, policy=policy)


def left_to_device(settings: RunSettings, completed: RunSettings, kind: DeviceKind) -> Mapping[str, Any]:
    """Returns the keys that the settings leave to the device, with the values of the completed settings.

    `trainer.tf32` has no effect on a CPU, and is on by default.
    """
    before, after = settings.trainer, completed.trainer
    found = (
        ("trainer.autocast", before.autocast, after.autocast),
        (
            "policy.gradient_checkpointing",
            settings.policy.gradient_checkpointing,
            completed.policy.gradient_checkpointing,
        ),
        (PASS_TOKENS_KEY, before.micro_batch_tokens, after.pass_tokens),
    )
    chosen = {name: value for name, given, value in found if given is None}
    return {**chosen, "trainer.tf32": True} if kind == "accelerator" and after.tf32 else chosen


def longest_row(settings: RunSettings) -> int:
    """Returns the tokens of the longest rollout, which one pass must hold anyway."""
    return settings.generation.max_prompt_tokens + settings.generation.max_response_tokens
