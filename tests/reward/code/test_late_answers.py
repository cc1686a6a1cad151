"""Rewards whose answers come late: several of them act as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollouts import numbered

from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.late_answers import SeveralLateAnswers
from rewardflow.reward.code.source import RewardSource
from rewardflow.types import Rollout


class Late:
    def __init__(self, reserved_usd: float, **limits: Any) -> None:
        self.usual_limits = limits
        self.scopes: list[str] = []
        self.is_all_saved = False
        self._reserved_usd = reserved_usd

    def resume(self, journal: Path, scope: str) -> None:
        self.scopes.append(scope)

    def reserved_before_usd(self, rollouts: Sequence[Rollout]) -> float:
        return self._reserved_usd

    def all_saved(self) -> None:
        self.is_all_saved = True


def test_each_of_several_has_a_scope_of_its_own_and_reservations_add_up() -> None:
    parts = [Late(0.25, timeout_s=9.0), Late(0.5, rpm=None)]
    both = SeveralLateAnswers(parts)
    both.resume(Path("journal.db"), "run")
    assert parts[0].scopes != parts[1].scopes
    assert both.reserved_before_usd(numbered(1)) == 0.75
    assert both.usual_limits == {"timeout_s": 9.0, "rpm": None}
    both.all_saved()
    assert all(one.is_all_saved for one in parts)


def test_only_an_attribute_of_the_right_shape_counts() -> None:
    class Reward:
        late_answers: Any = Late(0.0)

        def compute_score(self, response: str) -> float:
            return 1.0

    assert load_reward(RewardSource.of(Reward())).late_answers is Reward.late_answers
    Reward.late_answers = "a user's own attribute"
    assert load_reward(RewardSource.of(Reward())).late_answers is None
