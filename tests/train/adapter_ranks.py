"""Trains adapters of the tiny model, in one process or as one of two ranks, and says what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import gloo_rank
from tiny_training import batch, random_samples, run_settings
from torch import Tensor

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import Sample
from rewardflow.policy.adapters import is_adapter
from rewardflow.policy.load_policy import load_policy
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    LoraSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)
from rewardflow.train.fsdp2.backend import BACKEND
from rewardflow.train.fsdp2.sharding import whole
from rewardflow.train.fsdp2.trainer import TorchTrainer

CPU = torch.device("cpu")
# With a usual eps Adam turns the rounding of gradients that are almost 0 into steps of full size.
PLAIN = TrainerSettings(lr=1e-2, micro_batch_tokens=40, eps=1e-3)


def cases() -> dict[str, RunSettings]:
    policy = PolicySettings(lora=LoraSettings(rank=3, alpha=6), gradient_checkpointing=True)
    algorithm = AlgorithmSettings(kl_coef=0.3, entropy_coef=0.05)
    return {
        "float32": run_settings(policy=policy, trainer=PLAIN, algorithm=algorithm, seed=2),
        "bfloat16": run_settings(
            policy=policy,
            trainer=TrainerSettings(lr=1e-2, micro_batch_tokens=40, eps=1e-3, autocast="bfloat16"),
            algorithm=algorithm,
            seed=2,
        ),
    }


def mine(samples: Sequence[Sample], rank: int | None) -> Sequence[Sample]:
    return samples if rank is None else samples[:8] if rank == 0 else samples[8:]


async def steps(trainer: TorchTrainer, numbers: range, rank: int | None) -> None:
    for step in numbers:
        async with trainer.step(step):
            await trainer.forward_backward(batch(mine(random_samples(11, seed=step), rank)))
            await trainer.optim_step()


def tensors(trainer: TorchTrainer, *, adapters: bool) -> dict[str, Tensor]:
    named = trainer.model.named_parameters()
    return {name: whole(one.detach()).clone() for name, one in named if is_adapter(name) == adapters}


async def found_in(trainer: TorchTrainer, folder: Path, rank: int | None) -> dict[str, Any]:
    """Two steps, a checkpoint, and a third step; and the third step again from the checkpoint."""
    rollouts = [one.rollout for one in random_samples(6)]
    base, fresh = tensors(trainer, adapters=False), list(await trainer.log_probs(rollouts, "policy"))
    await steps(trainer, range(2), rank)
    taken = await trainer.take()
    await asyncio.to_thread(lambda: taken.write(folder, group=None if rank is None else dist.group.WORLD))
    found = {
        "fresh": fresh,
        "reference": list(await trainer.log_probs(rollouts, "reference")),
        "log_probs": list(await trainer.log_probs(rollouts, "policy")),
        "adapters": tensors(trainer, adapters=True),
        "sent": {name: one.clone() for name, one in trainer.weights()},
        "saved": sorted(taken.state),
        "base_is_same": all(torch.equal(one, base[n]) for n, one in tensors(trainer, adapters=False).items()),
        "base_dtypes": {one.dtype for one in base.values()},
    }
    await steps(trainer, range(2, 3), rank)
    found["third"] = tensors(trainer, adapters=True)
    await trainer.put_back(folder)
    await steps(trainer, range(2, 3), rank)
    found["third_again"] = tensors(trainer, adapters=True)
    return found


def alone(settings: RunSettings, folder: Path) -> dict[str, Any]:
    policy = load_policy(settings.policy, seed=settings.seed)
    with DeviceThread("trainer") as thread, BACKEND.open_alone(settings, policy, thread, CPU) as trainer:
        assert isinstance(trainer, TorchTrainer)
        return asyncio.run(found_in(trainer, folder, None))


def run_rank(rank: int, port: int, directory: str) -> None:
    found = {}
    with gloo_rank(rank, port, num_ranks=2):
        for name, settings in cases().items():
            with (
                DeviceThread("trainer") as thread,
                BACKEND.open_rank(settings, None, thread, CPU, dist.group.WORLD) as trainer,
            ):
                assert isinstance(trainer, TorchTrainer)
                folder = Path(directory) / f"checkpoint_{name}"
                if rank == 0:
                    folder.mkdir()
                dist.barrier()
                found[name] = asyncio.run(found_in(trainer, folder, rank))
        torch.save(found, Path(directory) / f"{rank}.pt")
