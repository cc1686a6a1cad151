"""The shared parts of rules: the protocol for cascades, the scores of right and wrong answers, and explanations.

Always true: an explanation is short and on one line, whatever the policy wrote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol, TypeVar

from rewardflow.types import Reward, Rollout

T = TypeVar("T")

_MAX_SHOWN_CHARS = 60


class Rule(Protocol):
    """The first stage of a `Cascade`."""

    def decide(self, rollout: Rollout, /) -> Reward | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The settings of rules that tell right from wrong: the score of each."""

    right: float = 1.0
    wrong: float = 0.0
    version: str = ""

    def price_problem(self) -> None:
        """Returns None: a rule costs nothing."""

    def cost_bound_usd(self, rollout: Rollout) -> float:
        return 0.0

    def _reward(self, is_right: bool, why: str) -> Reward:
        return Reward(value=self.right if is_right else self.wrong, explanation=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWorth(Worth):
    """The settings of rules that look for an answer, and may find none."""

    unanswered: float = 0.0

    def _compared(self, is_right: bool, answer: str, truth: str) -> Reward:
        return self._reward(is_right, f"answered {answer}, {'as' if is_right else 'but'} the truth is {truth}")

    def _without_answer(self, why: str) -> Reward:
        return Reward(value=self.unanswered, explanation=why)


def last(items: Iterable[T]) -> T | None:
    return next(iter(deque(items, maxlen=1)), None)


def shown(value: object) -> str:
    """Formats a value short and on one line, because it may be the policy's text."""
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}..."
