"""The settings of an audit: a second judge that looks at some rollouts of a run and trains nothing."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import check_choices, within

OnAlarm = Literal["warn", "pause", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """A stronger judge scores a share of the rollouts, to notice a policy that exploits its judge; see audit.md."""

    reward: str | PathLike[str]  # the reward file of the auditing judge, with its own limits
    share: float = 0.02  # the share of rollouts to audit
    alpha: float = 0.02  # the most that an honest run may be likely to raise an alarm, over all its steps
    # `warn`: log the alarm; `pause`: also save a checkpoint after the step, and wait until the file PAUSED of the run
    # directory is removed; `stop`: also save a checkpoint after the step and end, so that `--resume` can go on
    on_alarm: OnAlarm = "warn"
    probe_every: int | None = 50  # steps between two looks at the training judge's scores of fixed answers; null: none
    probes: int = 16  # how many fixed answers; whole groups, so it may be some more

    def __post_init__(self) -> None:
        check_choices(self)
        if not str(self.reward).endswith((".yaml", ".yml")):
            raise InvalidInput(f"reward must be a reward file ending in .yaml, got {self.reward}")
        within("share", self.share, 0.0, 1.0, low_open=True)
        within("alpha", self.alpha, 0.0, 1.0, low_open=True)
        for name in ("probe_every", "probes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, got {value}")
        if self.alpha == 1.0:
            raise InvalidInput("alpha must be below 1, got 1")
