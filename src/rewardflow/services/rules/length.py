"""The length rule: long responses lose points.

Always true: the score is never above 0 nor below `-penalty`, and never grows with the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.settings.rules import check_choice
from rewardflow.types import Reward, Rollout

LengthUnit = Literal["characters", "words", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """DAPO's soft punishment of overlong responses, to be added to another reward.

    The score is 0 up to `limit - buffer`, falls linearly to `-penalty` at `limit`, and stays there.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.rules.length:Length", "d39056708fc09e71917779f1eea1b6c4"
    )

    limit: int
    buffer: int
    unit: LengthUnit = "characters"
    penalty: float = 1.0
    version: str = ""

    is_quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, get_args(LengthUnit))
        if not 0 < self.buffer <= self.limit:
            raise InvalidInput(f"buffer must lie in (0, limit], got buffer={self.buffer}, limit={self.limit}")
        if not self.penalty >= 0:
            raise InvalidInput(f"penalty must not be negative, got penalty={self.penalty}")

    def price_problem(self) -> None:
        """Returns None: a rule costs nothing."""

    def cost_bound_usd(self, rollout: Rollout) -> float:
        return 0.0

    def compute_score(self, rollout: Rollout) -> Reward:
        length = self._measure(rollout)
        over = min(max(length - (self.limit - self.buffer), 0), self.buffer)
        return Reward(
            value=-self.penalty * over / self.buffer if over else 0.0,
            explanation=f"{length} {self.unit}; punished from {self.limit - self.buffer}, fully at {self.limit}",
            extras={"length": length},
        )

    def decide(self, rollout: Rollout) -> Reward | None:
        return self.compute_score(rollout)

    def _measure(self, rollout: Rollout) -> int:
        if self.unit == "characters":
            return len(rollout.response)
        if self.unit == "words":
            return len(rollout.response.split())
        if rollout.token_ids is None:
            raise InvalidInput("unit='tokens' needs token_ids on the rollout, got None; use words or characters")
        if rollout.response_mask is not None:  # tokens of tools between the policy's own do not count
            return sum(1 for flag in rollout.response_mask if flag)
        return len(rollout.token_ids)
