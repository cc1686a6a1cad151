"""The settings of a run's output: checkpoints, metrics, rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices, within


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When checkpoints are saved, so that a run can continue after a crash.

    They need `run_dir`; a run with a `run_dir` is also saved at its end.
    """

    every: int | None = None  # steps between checkpoints; null: only the checkpoints of the other settings here
    every_minutes: float | None = 30.0  # also save when the last checkpoint is this old; null: never for its age
    keep: int | None = None  # how many of the latest checkpoints to keep; null: 2 with `every`, otherwise 1
    # a number in metrics.jsonl; also keep the checkpoint with its highest value. With a number of the validation, such
    # as `validation/score_mean`, every measured version is saved
    keep_best_by: str | None = None
    on_signal: bool = True  # on SIGUSR1, save after the current step
    max_hours: float | None = None  # save and end the run before it has taken this long; null: no limit
    # after Ctrl-C or SIGTERM the current step may take this long, then the run is saved and ends; a second Ctrl-C or
    # SIGTERM ends it at once, at the last checkpoint
    grace_s: float = 300.0

    def __post_init__(self) -> None:
        if self.every is not None:
            at_least("every", self.every, 1)
        if self.every_minutes is not None:
            within("every_minutes", self.every_minutes, 0.0, math.inf, low_open=True)
        if self.keep is not None:
            at_least("keep", self.keep, 1)
        if self.keep_best_by is not None and not self.keep_best_by:
            raise InvalidInput("keep_best_by must name a number of metrics.jsonl, got an empty text")
        if self.max_hours is not None:
            within("max_hours", self.max_hours, 0.0, math.inf, low_open=True)
        within("grace_s", self.grace_s, 0.0, math.inf)

    @property
    def num_kept(self) -> int:
        """Returns how many of the latest checkpoints to keep: whoever sets `every` gets one in reserve."""
        if self.keep is not None:
            return self.keep
        return 1 if self.every is None else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSettings:
    """What a run does when many verdicts fail. A failed verdict never trains, whatever is set here."""

    # end the run, with exit code 3, after so many steps in a row in which every verdict failed; null: never
    stop_after: int | None = 3
    max_share: float = 0.1  # exit code 3 at the end if a larger share of the verdicts failed; 1: never

    def __post_init__(self) -> None:
        if self.stop_after is not None:
            at_least("stop_after", self.stop_after, 1)
        within("max_share", self.max_share, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where the metrics of each step go, besides metrics.jsonl; metrics.md lists them. They need `run_dir`."""

    tensorboard: bool | None = None  # write to `tensorboard` in `run_dir`; null: if it is installed
    wandb: Literal["online", "offline"] | None = None  # Weights & Biases, or files for `wandb sync`; null: no
    wandb_project: str = "rewardflow"  # the project at Weights & Biases
    wandb_entity: str | None = None  # the owner of the project; null: the user who is logged in

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """Which rollouts and verdicts are saved as parquet files in `run_dir`; run_directory.md lists the columns."""

    every: int | None = 1  # steps between files; null: no files
    limit: int | None = None  # most rollouts to save per step, in whole groups; null: all

    def __post_init__(self) -> None:
        for name in ("every", "limit"):
            value = getattr(self, name)
            if value is not None:
                at_least(name, value, 1)
