"""Two ranks that train the tiny model together: what a spawned process runs, and how it is spawned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import gloo_rank, spawn_ranks
from tiny_training import batch, critic_part, random_samples, tiny_model, tiny_trainer, valued
from torch import Tensor
from torch.distributed.tensor import DTensor

from rewardflow.algo.estimator import TokenTargets
from rewardflow.flow.records import Sample, UpdateReport
from rewardflow.settings.run_settings import AlgorithmSettings, CriticSettings, TrainerSettings
from rewardflow.train.fsdp2.sharding import whole
from rewardflow.train.fsdp2.trainer import TorchTrainer

NUM_STEPS = 3
ALGORITHM = AlgorithmSettings(kl_coef=0.3, entropy_coef=0.05, aggregation="seq_mean_token_mean")
VALUE_MODEL = CriticSettings(lr=1e-2, eps=1e-3, alone_steps=1)
SKIPPING = AlgorithmSettings()  # rows with an advantage of 0 need no pass


def samples_of(step: int) -> list[Sample]:
    """With returns and values too, which only a critic looks at."""
    return valued(random_samples(11, seed=step))


def micro_batches_of(rank: int, step: int) -> list[list[Sample]]:
    """Uneven: rank 0 has most rows, and rank 1 none at all in the last micro-batch, where nobody has in step 2."""
    samples = samples_of(step)
    if step == 2:
        return [samples[:9], [], []] if rank == 0 else [samples[9:], [], []]
    return [samples[:6], [], samples[6:8]] if rank == 0 else [samples[8:9], samples[9:], []]


async def train(trainer: TorchTrainer, rank: int | None) -> tuple[list[UpdateReport], list[bool]]:
    """Three steps; without a rank, as the only process, with everything in one micro-batch.

    Also whether, after each micro-batch of the first step, each rank had its part of every gradient and nothing else.
    """
    reports, are_reduced = [], []
    for step in range(NUM_STEPS):
        parts = [samples_of(step)] if rank is None else micro_batches_of(rank, step)
        async with trainer.step(step):
            for i, part in enumerate(parts):
                await trainer.forward_backward(batch(part, is_last=i == len(parts) - 1))
                if step == 0:
                    are_reduced.append(all(isinstance(one.grad, DTensor) for one in trainer.model.parameters()))
            reports.append(await trainer.optim_step())
    return reports, are_reduced


async def coast(trainer: TorchTrainer, rank: int | None) -> None:
    """An update that needs no pass where no term but the advantage has a gradient: momentum alone moves the weights."""
    samples = [replace(one, advantage=TokenTargets(*2 * (0 * one.precomputed.old,))) for one in samples_of(0)]
    async with trainer.step(NUM_STEPS):
        await trainer.forward_backward(batch(samples if rank is None else samples[:9] if rank == 0 else samples[9:]))
        await trainer.optim_step()


def trained(
    rank: int | None,
    algorithm: AlgorithmSettings,
    settings: TrainerSettings,
    critic: CriticSettings | None = None,
    **others: Any,
) -> dict[str, Any]:
    """What a run leaves behind, in plain records: reports, weights, log-probs and values."""
    rollouts = [sample.rollout for sample in samples_of(0)]
    mine = rollouts if rank is None else rollouts[:9] if rank == 0 else rollouts[9:]
    part = None if critic is None else critic_part(critic)
    models = {"reference": tiny_model(seed=1), "critic": part}
    with tiny_trainer(trainer=settings, algorithm=algorithm, **models, **others) as trainer:
        reports, are_reduced = asyncio.run(train(trainer, rank))
        log_probs = asyncio.run(trainer.log_probs(mine, "policy"))
        reference = asyncio.run(trainer.log_probs(mine, "reference"))
        values = [] if part is None else asyncio.run(trainer.values(mine))
        asyncio.run(coast(trainer, rank))
        return {
            "after_coasting": list(asyncio.run(trainer.log_probs(mine, "policy"))),
            "values": list(values),
            "critic": torch.cat([whole(w.detach()).flatten() for w in part.model.parameters()]) if part else None,
            "reports": [asdict(report) for report in reports],
            "weights": torch.cat([whole(weight.detach()).flatten() for weight in trainer.model.parameters()]),
            "log_probs": list(log_probs),
            "reference": list(reference),
            "are_reduced": are_reduced,
            "num_passes": trainer.statistics().num_passes,
        }


def cases() -> dict[str, tuple[Any, ...]]:
    # With a usual eps Adam turns the rounding of gradients that are almost 0 into steps of full size.
    plain = TrainerSettings(lr=1e-2, micro_batch_tokens=40, eps=1e-3)
    return {
        "every_term": (ALGORITHM, plain),
        "skipping": (SKIPPING, replace(plain, max_grad_norm=None)),
        "offload": (ALGORITHM, replace(plain, offload=True)),
        "bfloat16": (ALGORITHM, replace(plain, autocast="bfloat16")),
        "value_model": (ALGORITHM, plain, VALUE_MODEL),
        "value_head": (ALGORITHM, plain, replace(VALUE_MODEL, form="head", trunk_weight=0.5)),
        "offloaded_value_model": (SKIPPING, replace(plain, offload=True), VALUE_MODEL),
        "bfloat16_value_model": (ALGORITHM, replace(plain, autocast="bfloat16"), VALUE_MODEL),
    }


def run_rank(rank: int, port: int, directory: str) -> None:
    with gloo_rank(rank, port, num_ranks=2):
        found = {name: trained(rank, *case, group=dist.group.WORLD) for name, case in cases().items()}
        torch.save(found, Path(directory) / f"{rank}.pt")


def spawn_two(main: Callable[[int, int, str], None], directory: Path) -> list[dict[str, dict[str, Any]]]:
    spawn_ranks(main, 2, str(directory))
    return [torch.load(directory / f"{rank}.pt") for rank in range(2)]


def joined(ranks: list[dict[str, Any]], name: str) -> Tensor:
    return torch.cat([entry for rank in ranks for entry in rank[name]])
