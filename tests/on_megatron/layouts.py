"""The layouts that are tried, the models, and what one process makes of the same samples; nothing of Megatron's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_training import VOCABULARY, batch, random_samples, tiny_trainer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rewardflow.flow.records import Sample, UpdateReport
from rewardflow.settings.run_settings import AlgorithmSettings, MegatronSettings, TrainerSettings

NUM_STEPS = 5
SAVED_AT = 3  # the state is written before this step
ALGORITHM = AlgorithmSettings(kl_coef=0.3, entropy_coef=0.05, aggregation="seq_mean_token_mean")
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,  # which two ranks do not divide
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "pad_token_id": 3,  # which is sampled too, and whose embedding transformers does not train
}


@dataclass(frozen=True, slots=True)
class Case:
    """How many ranks, and how they are laid out; those beyond one model are replicas."""

    megatron: MegatronSettings
    num_ranks: int

    @property
    def num_replicas(self) -> int:
        return self.num_ranks // self.megatron.num_ranks


LAYOUTS = {
    "tp2": Case(MegatronSettings(tensor_parallel=2), 2),
    "pp2": Case(MegatronSettings(pipeline_parallel=2), 2),
    "dp2": Case(MegatronSettings(), 2),
    "cp2": Case(MegatronSettings(context_parallel=2), 2),
    "tp2_pp2": Case(MegatronSettings(tensor_parallel=2, pipeline_parallel=2), 4),
    "pp2_dp2": Case(MegatronSettings(pipeline_parallel=2), 4),
}


def settings(megatron: MegatronSettings | None = None, **fields: Any) -> TrainerSettings:
    # With a usual eps Adam turns the rounding of gradients that are almost 0 into steps of full size.
    backend: dict[str, Any] = {} if megatron is None else {"backend": "megatron", "megatron": megatron}
    plain: dict[str, Any] = {"lr": 1e-2, "micro_batch_tokens": 40, "eps": 1e-3, "weight_decay": 0.1}
    return TrainerSettings(**{**plain, **backend, **fields})


def _llama() -> nn.Module:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    }
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=scaling))


def _qwen2() -> nn.Module:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=False))


def _qwen3() -> nn.Module:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=12, tie_word_embeddings=False))


FAMILIES: dict[str, Callable[[], nn.Module]] = {"llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3}


def make_model(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = FAMILIES[family]()
    for name, weight in model.named_parameters():
        if weight.ndim == 1:  # biases start at 0 and norms at 1, where mistakes do not show
            nn.init.normal_(weight, float("norm" in name), 0.2)
    return model


def samples_of(step: int) -> list[Sample]:
    return random_samples(11, seed=step)


def micro_batches(step: int, replica: int, num_replicas: int, *, is_cut: bool = True) -> list[list[Sample]]:
    """Uneven: the last replica has two samples alone, and in the last micro-batch none."""
    samples = samples_of(step)
    mine = samples if num_replicas == 1 else samples[:9] if replica == 0 else samples[9:]
    return [mine[:4], mine[4:5], mine[5:]] if is_cut else [mine]


async def train(trainer: Any, steps: Sequence[int], replica: int = 0, num_replicas: int = 1) -> list[UpdateReport]:
    reports = []
    for step in steps:
        parts = micro_batches(step, replica, num_replicas)
        async with trainer.step(step):
            for number, part in enumerate(parts):
                await trainer.forward_backward(batch(part, is_last=number == len(parts) - 1))
            reports.append(await trainer.optim_step())
    return reports


def one_process(family: str, folder: Path) -> dict[str, Any]:
    """What the trainer of whole models makes of it, and a checkpoint it wrote on the way."""
    model = make_model(family)
    with tiny_trainer(model, trainer=settings(), algorithm=ALGORITHM, reference=make_model(family, seed=1)) as trainer:
        rollouts = [sample.rollout for sample in samples_of(0)]
        log_probs = {of: list(asyncio.run(trainer.log_probs(rollouts, of))) for of in ("policy", "reference")}
        reports = asyncio.run(train(trainer, range(SAVED_AT)))
        asyncio.run(trainer.take()).write(folder)
        reports += asyncio.run(train(trainer, range(SAVED_AT, NUM_STEPS)))
    return {"log_probs": log_probs, "reports": reports, "weights": weights_of(model)}


def gone_on(family: str, folder: Path) -> dict[str, Any]:
    """The trainer of whole models, from a checkpoint that others wrote."""
    model = make_model(family, seed=2)
    with tiny_trainer(model, trainer=settings(), algorithm=ALGORITHM, reference=make_model(family, seed=1)) as trainer:
        asyncio.run(trainer.put_back(folder))
        reports = asyncio.run(train(trainer, range(SAVED_AT, NUM_STEPS)))
    return {"reports": reports, "weights": weights_of(model)}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}
