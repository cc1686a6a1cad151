"""Runs of the tiny policy on Ray: what they train, and what is left of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.checkpoint.model_state import read_state
from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.flow.schedule import Schedule
from rewardflow.policy.load_policy import load_policy
from rewardflow.runtime.open_run import OpenRun, open_run
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    DataSettings,
    GenerationSettings,
    RunSettings,
    RuntimeSettings,
    TrainerSettings,
)

REWARD = """
import asyncio


async def judge(response, ground_truth):
    await asyncio.sleep(0.002)
    right = sum(a == b for a, b in zip(response, ground_truth))
    return right / len(ground_truth) - 0.02 * len(response) - 0.0003 * sum(map(ord, response))


async def slow(response):
    await asyncio.sleep(0.5)
    return len(response) / 5 - 0.0003 * sum(map(ord, response))


async def sevens(response):
    await asyncio.sleep(0.002)
    return response.count("7") / 5
"""


def on_ray(ranks: int = 2, **fields: Any) -> RuntimeSettings:
    """In the cluster that the tests have started."""
    return RuntimeSettings(kind="ray", address="auto", ranks=ranks, **fields)


def settings_in(folder: Path, reward: str = "judge", **fields: Any) -> RunSettings:
    """Five steps, reproducible: with a usual eps Adam turns the rounding of gradients near 0 into whole steps."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "rewards.py").write_text(REWARD, "utf-8")
    defaults: dict[str, Any] = {
        "reward": f"{folder / 'rewards.py'}:{reward}",
        "run_dir": folder / "run",
        "data": DataSettings(task="copy_digits"),
        "schedule": Schedule(groups_per_step=4, mini_batches=2, stream="batch", order="fixed"),
        "steps": 5,
        "generation": GenerationSettings(group_size=4, max_prompt_tokens=8, max_response_tokens=5),
        "algorithm": AlgorithmSettings(kl_coef=0.01),
        "trainer": TrainerSettings(lr=1e-3, eps=1e-3, threads=1, micro_batch_tokens=64),
        "runtime": on_ray(),
    }
    return RunSettings(**{**defaults, **fields})


def train(settings: RunSettings, *, look: Callable[[OpenRun], Any] = lambda _: None, **options: Any) -> Any:
    """What `look` finds when the run has ended."""

    async def run() -> Any:
        async with open_run(settings, probes=False, **options) as opened:
            await opened.train()
            return look(opened)

    return asyncio.run(run())


def metrics_in(settings: RunSettings) -> list[dict[str, Any]]:
    lines = (Path(str(settings.run_dir)) / "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def losses(settings: RunSettings) -> list[float]:
    """Of every update."""
    names = ("policy_loss", "kl", "entropy")
    return [one[name] for line in metrics_in(settings) for one in line["mini_batches"] for name in names]


def checkpoint_of(settings: RunSettings) -> Checkpoint:
    found = CheckpointStore(Path(str(settings.run_dir)) / "checkpoints").latest()
    assert found is not None
    return found


def weights_of(settings: RunSettings) -> Tensor:
    """Of the last checkpoint, in one piece."""
    policy = load_policy(settings.policy, seed=99)
    read_state(checkpoint_of(settings).path / "state", policy.model)
    return torch.cat([weight.detach().flatten() for weight in policy.model.parameters()])
