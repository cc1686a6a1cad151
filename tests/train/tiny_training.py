"""A model of 2 layers and 17 words, samples to train it on, and a trainer of it."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rewardflow.algo.estimator import TokenTargets
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import MicroBatch, Precomputed, Sample
from rewardflow.flow.schedule import Schedule
from rewardflow.policy.value_model import ValueModel
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    CriticSettings,
    DataSettings,
    RunSettings,
    TrainerSettings,
)
from rewardflow.train.fsdp2.critic import CriticPart
from rewardflow.train.fsdp2.trainer import TorchTrainer
from rewardflow.train.packing import TokenRow
from rewardflow.types import Reward, Rollout

VOCABULARY = 17
MAX_RESPONSE_TOKENS = 9
TEMPERATURE = 0.7


def tiny_model(seed: int = 0, **config: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(**{**sizes, **heads, "initializer_range": 0.3, **config}))


def rollout(prompt: Sequence[int], response: Sequence[int], **fields: Any) -> Rollout:
    mask = [0] * len(prompt) + [1] * len(response)
    return Rollout(
        **{"group_id": "g", "response": "", "token_ids": [*prompt, *response], "response_mask": mask, **fields}
    )


def sample(of: Rollout, advantage: Any = 1.0, *, value: float | None = 1.0, **log_probs: Any) -> Sample:
    return Sample(rollout=of, reward=Reward(value=value), advantage=advantage, precomputed=Precomputed(**log_probs))


def random_samples(number: int, seed: int = 0) -> list[Sample]:
    """Every third failed, every fifth with an advantage of 0, and log-probs so far off that clips are active.

    The engine's are not the trainer's, and from the fourth on the rollouts are 0, 1 or 3 versions old.
    """
    dice = random.Random(seed)
    staleness = [(0, 1, 3)[i // 2 % 3] if i > 3 else 0 for i in range(number)]
    return [_random_sample(dice, staleness[i], is_failed=i % 3 == 2, is_zero=i % 5 == 4) for i in range(number)]


def _random_sample(dice: random.Random, staleness: int, *, is_failed: bool, is_zero: bool) -> Sample:
    prompt, response = ([dice.randrange(VOCABULARY) for _ in range(dice.randint(1, 9))] for _ in range(2))
    guesses = {
        name: torch.tensor([dice.uniform(-4.0, -1.0) for _ in response]) for name in ("old", "reference", "behaviour")
    }
    advantage = 0.0 if is_failed or is_zero else dice.uniform(-2.0, 2.0)
    drift = random.Random(len(prompt) * advantage)
    engine = array("f", [0.0] * len(prompt) + [drift.uniform(-4.0, -1.0) for _ in response])
    made = rollout(prompt, response, step=5, policy_version=5 - staleness, log_probs=engine)
    return sample(made, advantage, value=None if is_failed else 1.0, **guesses)


def valued(samples: Sequence[Sample], seed: int = 0) -> list[Sample]:
    """With returns, and with values so far off that the clip is active."""
    dice = random.Random(seed)

    def numbers(row: TokenRow) -> Tensor:
        return torch.tensor([dice.uniform(-2.0, 2.0) for _ in row.sampled])

    found = []
    for one in samples:
        row = TokenRow.of(one.rollout)
        targets = TokenTargets(torch.full((len(row.sampled),), float(one.advantage)), numbers(row))
        found.append(replace(one, advantage=targets, precomputed=replace(one.precomputed, values=numbers(row))))
    return found


def value_model(settings: CriticSettings, seed: int = 3) -> ValueModel:
    """With a head that is not 0, so that its trunk has a gradient."""
    model = ValueModel(32, tiny_model(seed).base_model if settings.form == "model" else None, torch.device("cpu"))
    with torch.no_grad():
        model.head.weight.copy_(torch.randn(1, 32, generator=torch.Generator().manual_seed(seed)))
    return model


def critic_part(settings: CriticSettings, seed: int = 3) -> CriticPart:
    return CriticPart(model=value_model(settings, seed), settings=settings)


def batch(samples: Sequence[Sample], *, is_last: bool = True) -> MicroBatch:
    return MicroBatch(step=0, mini_batch=0, samples=tuple(samples), is_last=is_last)


@contextmanager
def tiny_trainer(
    model: torch.nn.Module | None = None,
    *,
    trainer: TrainerSettings | None = None,
    algorithm: AlgorithmSettings | None = None,
    uses_old: bool = True,
    total_steps: int = 10,
    **others: Any,
) -> Iterator[TorchTrainer]:
    with DeviceThread("trainer") as thread:
        yield TorchTrainer(
            model or tiny_model(),
            trainer=trainer or TrainerSettings(lr=1e-2),
            algorithm=algorithm or AlgorithmSettings(),
            uses_old=uses_old,
            temperature=TEMPERATURE,
            max_response_tokens=MAX_RESPONSE_TOKENS,
            total_steps=total_steps,
            thread=thread,
            **others,
        )


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


def run_settings(**changes: Any) -> RunSettings:
    """Of a run of one step with the tiny model."""
    plain = {"reward": "judge.py:f", "data": DataSettings(task="arithmetic"), "schedule": Schedule(groups_per_step=8)}
    return RunSettings(**{**plain, "steps": 1, **changes})
