"""Two ranks that read their parts of models, and what a spawned one finds then."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import gloo_rank
from tiny_training import random_samples, run_settings
from torch import Tensor, nn

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.settings.run_settings import AlgorithmSettings, PolicySettings, RunSettings, TrainerSettings
from rewardflow.train.fsdp2.backend import BACKEND
from rewardflow.train.fsdp2.sharding import is_sharded, whole
from rewardflow.train.fsdp2.trainer import TorchTrainer

ALGORITHM = AlgorithmSettings(advantage="gae", kl_coef=0.1)
FOLDERS = ("untied", "tied")


def cases(directory: Path) -> dict[str, RunSettings]:
    plain = run_settings(algorithm=ALGORITHM, trainer=TrainerSettings(micro_batch_tokens=40))
    folders = {name: replace(plain, policy=PolicySettings(model=str(directory / name))) for name in FOLDERS}
    return {
        "built": plain,
        **folders,
        "bfloat16": replace(folders["untied"], trainer=TrainerSettings(autocast="bfloat16")),
        "other_critic": replace(plain, critic=replace(plain.critic, model=str(directory / "untied"))),
    }


def found_in(trainer: TorchTrainer) -> dict[str, Any]:
    """Whole weights and buffers of all models, and log-probs; ranks look at the same rollouts."""
    assert trainer.critic is not None
    assert trainer.critic.model.trunk is not None
    assert trainer.reference is not None
    rollouts = [sample.rollout for sample in random_samples(6)]
    models = {"policy": trainer.model, "reference": trainer.reference, "critic": trainer.critic.model.trunk}
    return {
        **{name: tensors_of(model) for name, model in models.items()},
        "sent": dict(trainer.weights()),
        "are_sharded": [is_sharded(model) for model in models.values()],
        "is_tied": model_is_tied(trainer.model),
        "log_probs": list(asyncio.run(trainer.log_probs(rollouts, "policy"))),
        "reference_log_probs": list(asyncio.run(trainer.log_probs(rollouts, "reference"))),
        "values": list(asyncio.run(trainer.values(rollouts))),
    }


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(one.detach()) for name, one in (*model.named_parameters(), *model.named_buffers())}


def model_is_tied(model: nn.Module) -> bool:
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight  # type: ignore[operator]


def run_rank(rank: int, port: int, directory: str) -> None:
    found = {}
    with gloo_rank(rank, port, num_ranks=2):
        for name, settings in cases(Path(directory)).items():
            with (
                DeviceThread("trainer") as thread,
                BACKEND.open_rank(settings, None, thread, torch.device("cpu"), dist.group.WORLD) as trainer,
            ):
                assert isinstance(trainer, TorchTrainer)
                found[name] = found_in(trainer)
        torch.save(found, Path(directory) / f"{rank}.pt")
