"""Trains with TRL's GRPO while the next generation is judged: TRL's own script with one import and one line changed.

python examples/trl/train.py --model Qwen/Qwen2.5-0.5B-Instruct --steps 50
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig

import rewardflow as rf
from rewardflow.adapters.trl import GRPOTrainer  # instead of trl's: it does not wait for the judge

HERE = Path(__file__).resolve().parent
GROUP_SIZE = 4


def prompts(count: int) -> Dataset:
    """Three digits to copy; the column `ground_truth` reaches the reward under this name."""
    draw = random.Random(0)
    numbers = [f"{draw.randrange(1000):03}" for _ in range(count)]
    return Dataset.from_dict({"prompt": [f"{number}=" for number in numbers], "ground_truth": numbers})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a path or a name that transformers can load")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", default="runs/trl")
    args = parser.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    agent = rf.RewardAgent(
        f"{HERE / 'judge.py'}:compute_score", max_concurrency=64, max_cost_usd=5, journal=f"{args.out}/verdicts.db"
    )
    trainer = GRPOTrainer(
        model=args.model,
        reward_funcs=agent,
        args=GRPOConfig(
            output_dir=args.out,
            num_generations=GROUP_SIZE,
            per_device_train_batch_size=4 * GROUP_SIZE,
            max_completion_length=8,
            max_steps=args.steps,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=prompts(64),
    )
    trainer.train()


if __name__ == "__main__":
    main()
