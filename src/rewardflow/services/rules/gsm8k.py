"""The rule for GSM8K and other tasks whose answer is a number.

Always true: a response is right only if the number read from it equals the true one exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Literal, get_args

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.rules.numbers import read_last_number, read_marked_number, read_number_answer
from rewardflow.services.rules.rule import AnswerWorth, shown
from rewardflow.settings.rules import check_choice
from rewardflow.types import Reward, Rollout

GSM8KMethod = Literal["strict", "flexible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GSM8K(AnswerWorth):
    """Compares the last number of a response with the true one, by value: 1,200 and $1200.00 are equal.

    `strict` requires the data set's mark, `#### 42`, and takes the last one; `flexible` takes the last number of any
    form. The ground truth is a number or a whole GSM8K answer.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.rules.gsm8k:GSM8K", "b5c04eab7f69db70e49ed809f7e6d4d7"
    )

    method: GSM8KMethod = "strict"

    is_quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(GSM8KMethod))

    def compute_score(self, rollout: Rollout) -> Reward:
        truth = read_number_answer(rollout.ground_truth)
        if truth is None:
            raise InvalidInput(
                f"gsm8k needs a number or a text with '#### number' as ground truth, got {shown(rollout.ground_truth)}"
            )
        return self._compare(rollout.response, truth) or self._without_answer(f"no answer found ({self.method})")

    def decide(self, rollout: Rollout) -> Reward | None:
        truth = read_number_answer(rollout.ground_truth)
        return None if truth is None else self._compare(rollout.response, truth)

    def _compare(self, response: str, truth: Decimal) -> Reward | None:
        answer = read_marked_number(response) if self.method == "strict" else read_last_number(response)
        return None if answer is None else self._compared(answer == truth, shown(answer), shown(truth))
