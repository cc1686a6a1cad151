"""What is kept of a run: checkpoints, figures, rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices, within


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When a run is saved, to go on after a crash. They need `run_dir`, and a run that has one is saved at its end."""

    every: int | None = None  # steps from one checkpoint to the next; null: no more than the others here ask for
    keep: int = 2  # how many of the latest stay
    # a number of metrics.jsonl; the checkpoint with the highest stays as well. One of the validation, such as
    # `validation/score_mean`, has every version that is measured saved
    keep_best_by: str | None = None
    on_signal: bool = True  # save after the step that is under way when SIGUSR1 comes
    max_hours: float | None = None  # save and end the run before it has taken so long; null: it takes what it needs

    def __post_init__(self) -> None:
        if self.every is not None:
            at_least("every", self.every, 1)
        at_least("keep", self.keep, 1)
        if self.keep_best_by is not None and not self.keep_best_by:
            raise InvalidInput("keep_best_by must name a number of metrics.jsonl, got an empty text")
        if self.max_hours is not None:
            within("max_hours", self.max_hours, 0.0, math.inf, low_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where the figures of each step go, beside metrics.jsonl; what they are is in metrics.md. They need `run_dir`."""

    tensorboard: bool | None = None  # a folder `tensorboard` in `run_dir`; null: if tensorboard is installed
    wandb: Literal["online", "offline"] | None = None  # to Weights & Biases, or to files for `wandb sync`; null: no
    wandb_project: str = "rewardflow"  # of the run there
    wandb_entity: str | None = None  # who owns the project; null: whoever is logged in

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """What is kept of the rollouts and their verdicts, as parquet files in `run_dir`; columns in run_directory.md."""

    every: int | None = 1  # steps from one file to the next; null: no files
    limit: int | None = None  # rollouts of a step at the most, in whole groups; null: all

    def __post_init__(self) -> None:
        for name in ("every", "limit"):
            value = getattr(self, name)
            if value is not None:
                at_least(name, value, 1)
