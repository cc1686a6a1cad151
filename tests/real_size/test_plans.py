"""The memory of models of real sizes on eight ranks, measured on the trainer itself from their configurations alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from transformers import Qwen2Config

from rewardflow.flow.schedule import Schedule
from rewardflow.policy.tiny import build_tokenizer
from rewardflow.runtime.memory_plan import MemoryPlan, plan_memory
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    DataSettings,
    GenerationSettings,
    LoraSettings,
    PolicySettings,
    RunSettings,
    RuntimeSettings,
    TrainerSettings,
)

GIB = 2**30
QWEN_7B = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
QWEN_32B = {
    "vocab_size": 152064,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
}


def settings(folder: Path, sizes: dict[str, int], **changes: Any) -> RunSettings:
    """A run on eight ranks with 8,192 tokens a pass. The folder gets a configuration and a tokenizer, no weights."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    Qwen2Config(**sizes, tie_word_embeddings=False, eos_token_id=tokenizer.eos_token_id).save_pretrained(folder)
    return RunSettings(
        **{
            "reward": "judge.py:f",
            "data": DataSettings(task="arithmetic"),
            "schedule": Schedule(groups_per_step=8, placement="separate"),
            "steps": 1,
            "policy": PolicySettings(model=str(folder), gradient_checkpointing=True),
            "trainer": TrainerSettings(autocast="bfloat16", micro_batch_tokens=8192),
            "generation": GenerationSettings(max_prompt_tokens=1024, max_response_tokens=7168),
            "runtime": RuntimeSettings(kind="ray", ranks=8),
            **changes,
        }
    )


def gib(plan: MemoryPlan) -> dict[str, float]:
    return {phase.name: phase.num_bytes / GIB for phase in plan.phases}


def shard_gib(plan: MemoryPlan) -> float:
    return plan.num_parameters * 4 / 8 / GIB


def test_7b_on_eight_ranks_loads_shard_by_shard_and_updates_within_24_gib(tmp_path: Path) -> None:
    plan = plan_memory(settings(tmp_path, QWEN_7B), 80 * GIB)
    peaks = gib(plan)
    one_layer = (plan.num_parameters - 2 * 152064 * 3584) / 28 * 4 / GIB
    assert plan.num_parameters == 7_615_616_512
    assert peaks["load"] <= shard_gib(plan) + one_layer
    assert peaks["update"] <= 24.0
    assert plan.fits


def test_7b_with_reference_and_critic_stays_under_40_gib(tmp_path: Path) -> None:
    algorithm = AlgorithmSettings(advantage="gae", kl_coef=0.01)
    plan = plan_memory(settings(tmp_path, QWEN_7B, algorithm=algorithm), 80 * GIB)
    assert max(gib(plan).values()) < 40.0


def test_32b_on_eight_devices_of_80_gib_is_told_by_how_much_it_fits_or_is_short(tmp_path: Path) -> None:
    plan = plan_memory(settings(tmp_path, QWEN_32B), 80 * GIB)
    short = plan.largest.num_bytes - 80 * GIB
    if plan.fits:
        assert plan.advice == ()
    else:
        assert f"{short / GIB:,.1f} GiB are short" in plan.advice[0]
        assert len(plan.advice) > 1
    tight = dataclasses.replace(plan, device_bytes=plan.largest.num_bytes - GIB)
    assert not tight.fits


def test_32b_with_adapters_needs_less_than_half_of_devices_of_80_gib(tmp_path: Path) -> None:
    policy = PolicySettings(model=str(tmp_path), gradient_checkpointing=True, lora=LoraSettings(rank=32, alpha=64))
    plan = plan_memory(settings(tmp_path, QWEN_32B, policy=policy, algorithm=AlgorithmSettings(kl_coef=0.01)), 80 * GIB)
    assert plan.fits
    assert max(gib(plan).values()) < 40.0
    assert not any("reference" in phase.by_kind for phase in plan.phases)
    assert plan.num_trained < 0.01 * plan.num_parameters
