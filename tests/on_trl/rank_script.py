"""Trains on two ranks, as `torchrun` starts it, and writes down what each rank saw.

Arguments: the model's folder, and a folder for files. Tries our function in TRL's trainer, our trainer, and a failure.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import datasets
import torch
import trl

import rewardflow as rf
from rewardflow.adapters.trl import GRPOTrainer

GROUP_SIZE = 4


class Relative:
    """Sees whole groups, although TRL spreads each over both ranks."""

    async def score_group(self, rollouts: Any) -> list[float]:
        assert len({rollout.prompt for rollout in rollouts}) == 1
        return [
            float(rollout.response < other.response) for rollout, other in zip(rollouts, rollouts[::-1], strict=True)
        ]


async def broken(response: str) -> float:
    rf.report_usage(cost_usd=1.0)
    return 0.0


def main(model: str, folder: Path) -> None:
    torch.set_num_threads(1)
    for what in ("function", "trainer", "failure"):
        seen = tried(model, folder, what)
        (folder / f"{what}{seen['rank']}.json").write_text(json.dumps(seen))


def tried(model: str, folder: Path, what: str) -> dict[str, Any]:
    settings = {"max_cost_usd": 4.0, "call_cost_usd": 1.0} if what == "failure" else {}
    agent = rf.RewardAgent(broken if what == "failure" else Relative, journal=folder / f"{what}.db", **settings)
    reward = agent.as_batch_function(group_size=GROUP_SIZE)
    kind = trl.GRPOTrainer if what == "function" else GRPOTrainer
    prompts = [f"{number:03}=" for number in range(16)]
    trainer = kind(
        model=model,
        reward_funcs=reward,
        args=trl.GRPOConfig(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=2,  # half a group
            num_generations=GROUP_SIZE,
            max_completion_length=4,
            max_steps=3,
            learning_rate=1e-2,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
    )
    error = ""
    try:
        trainer.train()
    except rf.RewardflowError as raised:
        error = type(raised).__name__
    seen = {
        "rank": trainer.accelerator.process_index,
        "ranks": trainer.accelerator.num_processes,
        "is_open": agent.is_open,
        "judged": agent.statistics().verdicts.submitted if agent.is_open else 0,
        "weights": float(sum(weight.double().sum() for weight in trainer.model.state_dict().values())),
        "error": error,
    }
    reward.close()
    return seen


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)  # gloo's threads may abort a process whose interpreter shuts down (see gloo_ranks.py)
