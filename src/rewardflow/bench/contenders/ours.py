"""rewardflow's own run, synchronous and on-policy, as `rewardflow train` would run it without a run directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rewardflow.bench.contenders.turns import Spent, Turns, take_part
from rewardflow.bench.contenders.workload import MODEL, PROMPTS, Workload
from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import embedded
from rewardflow.settings.run_settings import (
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)
from rewardflow.types import Rollout


async def compute_score(rollout: Rollout) -> float:
    """Scores without cost, and differently within a group, so that every response has an advantage."""
    return float(rollout.index)


def settings_of(workload: Workload, folder: Path) -> RunSettings:
    return RunSettings(
        reward="rewardflow.bench.contenders.ours:compute_score",
        data=DataSettings(path=folder / PROMPTS, shuffle=False),
        schedule=Schedule(groups_per_step=workload.prompts_per_step),
        steps=workload.total_steps,
        seed=workload.seed,
        policy=PolicySettings(model=str(folder / MODEL)),
        generation=GenerationSettings(
            group_size=workload.group_size,
            max_prompt_tokens=workload.longest_prompt,
            max_response_tokens=workload.response_tokens,
        ),
        trainer=TrainerSettings(lr=workload.lr, device="cpu", threads=1),
    )


def train(workload: Workload, folder: Path, turns: Turns) -> None:
    asyncio.run(_train(settings_of(workload, folder), turns))


async def _train(settings: RunSettings, turns: Turns) -> None:
    def stepped(report: StepReport) -> None:
        busy_s = report.usage.busy_s
        turns.stepped(
            Spent(
                generate_s=busy_s.get("generate", 0.0),
                log_probs_s=busy_s.get("log_probs", 0.0),
                update_s=busy_s.get("update", 0.0),
            )
        )

    agent = RewardAgent(compute_score, max_concurrency=256)
    async with embedded(settings, agent=agent, on_step=stepped) as run:
        await run.train()


if __name__ == "__main__":
    take_part(train, ("torch", "transformers"))
