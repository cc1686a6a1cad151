"""One of a trainer's reward functions whose calls began before TRL asks for their results.

Always true: TRL gets one number for each completion of the batch that it asks about, or None for a failed verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewardflow.errors import FlowError
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.batch_function import BatchFunction
from rewardflow.types import Reward


class DeferredReward:
    """What TRL has in its list of reward functions in place of an agent's function."""

    def __init__(self, function: BatchFunction) -> None:
        self.__name__ = function.__name__
        self.function = function
        self._answer: list[float | None] | None = None

    def answer(self, verdicts: Sequence[Reward]) -> None:
        """Sets what TRL's next call returns."""
        self._answer = self.function.numbers(verdicts)

    def __call__(self, completions: Sequence[Any], **_: Any) -> list[float | None]:
        answer, self._answer = self._answer, None
        if answer is None or len(answer) != len(completions):
            raise FlowError(
                f"TRL must ask for the rewards of the batch that was judged, got {len(completions)} completions and "
                f"{'no verdicts' if answer is None else f'{len(answer)} verdicts'}"
            )
        return answer


def deferred(reward: Any) -> Any:
    """Returns an agent or its function as a `DeferredReward`; any other reward function as it is."""
    if isinstance(reward, RewardAgent):
        reward = reward.as_batch_function()
    return DeferredReward(reward) if isinstance(reward, BatchFunction) else reward
