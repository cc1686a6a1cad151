"""What rules have in common: what a cascade asks of them, what right and wrong are worth, and how they say why.

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
    """What a `Cascade` needs of its first stage."""

    def decide(self, rollout: Rollout, /) -> Reward | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The settings of every rule that tells right from wrong."""

    right: float = 1.0
    wrong: float = 0.0
    version: str = ""

    def price_problem(self) -> None:
        """A rule is free, and nothing keeps anybody from knowing it."""

    def _reward(self, is_right: bool, why: str) -> Reward:
        return Reward(value=self.right if is_right else self.wrong, explanation=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWorth(Worth):
    """The settings of every rule that looks for an answer, of which there may be none."""

    unanswered: float = 0.0

    def _compared(self, is_right: bool, answer: str, truth: str) -> Reward:
        return self._reward(is_right, f"answered {answer}, {'as' if is_right else 'but'} the truth is {truth}")

    def _without_answer(self, why: str) -> Reward:
        return Reward(value=self.unanswered, explanation=why)


def last(items: Iterable[T]) -> T | None:
    return next(iter(deque(items, maxlen=1)), None)


def shown(value: object) -> str:
    """Short and on one line: it may be the policy's text."""
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}..."
