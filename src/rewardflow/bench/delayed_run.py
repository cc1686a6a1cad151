"""The run that schedules are measured with: a tiny model learns to copy digits, with a `DelayedReward`.

Always true: it computes on one thread, so that the loop has a core of its own where there are two.
"""

from __future__ import annotations

from rewardflow.flow.schedule import Schedule
from rewardflow.settings.run_settings import (
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)


def delayed_run(
    schedule: Schedule, *, group_size: int, steps: int, seed: int, hidden: int, micro_batch_tokens: int
) -> RunSettings:
    return RunSettings(
        reward="rewardflow.bench.delayed_reward:DelayedReward",
        data=DataSettings(task="copy_digits"),
        schedule=schedule,
        steps=steps,
        seed=seed,
        policy=PolicySettings(tiny_hidden=hidden),
        generation=GenerationSettings(
            group_size=group_size,
            max_prompt_tokens=16,
            overlong_prompts="truncate",  # none is, and so none is read twice to find out
            max_response_tokens=4,
            max_sequences=1024,
        ),
        trainer=TrainerSettings(lr=3e-3, threads=1, device="cpu", micro_batch_tokens=micro_batch_tokens),
    )
