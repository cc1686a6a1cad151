"""The settings of a small run that needs no account and no GPU: a tiny model learns to copy digits.

Always true: runs with the same arguments have the same settings but for what the caller changes. The demo and the
benchmarks use this run.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from rewardflow.flow.schedule import Schedule, Stream
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    CriticSettings,
    DataSettings,
    GenerationSettings,
    RunSettings,
    TrainerSettings,
)

GROUPS_PER_STEP = 32
GROUP_SIZE = 8
NUM_DIGITS = 3
STEPS = 120  # enough for nearly every seed

CopyingTask = Literal["copy_digits", "copy_numbers"]

ALGORITHM = AlgorithmSettings(entropy_coef=0.1)
# One thread leaves the loop a core where the machine has two.
TRAINER = TrainerSettings(lr=2e-3, lr_schedule="linear", min_lr_share=0.3, threads=1, device="cpu")
CRITIC = CriticSettings()


class CopyingOptions(TypedDict, total=False):
    """The optional arguments of `copying_run`."""

    task: CopyingTask
    groups_per_step: int
    group_size: int
    num_digits: int
    algorithm: AlgorithmSettings
    trainer: TrainerSettings
    critic: CriticSettings


def copying_run(
    reward: str,
    *,
    stream: Stream,
    max_staleness: int,
    seed: int,
    steps: int,
    task: CopyingTask = "copy_digits",
    groups_per_step: int = GROUPS_PER_STEP,
    group_size: int = GROUP_SIZE,
    num_digits: int = NUM_DIGITS,
    algorithm: AlgorithmSettings = ALGORITHM,
    trainer: TrainerSettings = TRAINER,
    critic: CriticSettings = CRITIC,
) -> RunSettings:
    """Returns the settings of the run; after `STEPS` steps about 99 of 100 characters are right.

    The entropy bonus makes learning dependable: without it the policy settles on one answer for a digit before it has
    tried the others. The falling learning rate keeps stale updates from undoing what the model learnt.
    """
    return RunSettings(
        reward=reward,
        data=DataSettings(task=task, num_digits=num_digits),
        schedule=Schedule(
            groups_per_step=groups_per_step,
            mini_batches=4,
            stream=stream,
            max_staleness=max_staleness,
            min_group=min(2, group_size),
        ),
        steps=steps,
        seed=seed,
        generation=GenerationSettings(
            group_size=group_size, max_prompt_tokens=num_digits + 2, max_response_tokens=num_digits + 1
        ),
        algorithm=algorithm,
        trainer=trainer,
        critic=critic,
    )
