"""The rule for mathematical answers: compares expressions by their value.

Always true: an expression is never turned into digits, neither to compare nor to show it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.rules.rule import AnswerWorth, shown
from rewardflow.types import Reward, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Math(AnswerWorth):
    r"""Compares MATH-style answers (`\boxed{\frac{1}{2}}` and 0.5) with math-verify, symbolically.

    Needs `rewardflow[math]`. math-verify's own timeouts use signals, which only work in a main thread, so they are off
    and the agent's timeout applies. Only the last `tail_chars` of a response are read: the answer is there.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.rules.symbolic:Math", "1d230a0289b488bb590960e12bbc5196"
    )

    tail_chars: int = 4000

    is_quick: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.tail_chars < 1:
            raise InvalidInput(f"tail_chars must be at least 1, got tail_chars={self.tail_chars}")

    def compute_score(self, rollout: Rollout) -> Reward:
        truth = _parse_truth(rollout.ground_truth)
        if not truth:
            raise InvalidInput(f"math needs a ground truth it can read, got {shown(rollout.ground_truth)}")
        return self._compare(rollout.response, truth) or self._without_answer("no mathematical answer found")

    def decide(self, rollout: Rollout) -> Reward | None:
        truth = _parse_truth(rollout.ground_truth)
        return self._compare(rollout.response, truth) if truth else None

    def _compare(self, response: str, truth: list[Any]) -> Reward | None:
        answer = _parse(response[-self.tail_chars :])
        if not answer:
            return None
        is_right = _math_verify().verify(truth, answer, timeout_seconds=None)
        return self._compared(is_right, _as_found(answer), _as_found(truth))


def _parse_truth(ground_truth: Any) -> list[Any]:
    """Puts a bare answer into a box; otherwise math-verify would read only its first number."""
    if ground_truth is None or isinstance(ground_truth, bool):
        return []
    text = str(ground_truth).strip()
    is_marked = "\\boxed" in text or "$" in text
    return _parse(text if is_marked else f"\\boxed{{{text}}}") if text else []


def _parse(text: str) -> list[Any]:
    parsed: list[Any] = _math_verify().parse(text, parsing_timeout=None)
    return parsed


def _as_found(parsed: list[Any]) -> str:
    """Returns the text, never the expression: turning 9**9**9 into digits would not end."""
    return next((shown(one) for one in reversed(parsed) if isinstance(one, str)), "an expression")


def _math_verify() -> Any:
    try:
        module = importlib.import_module("math_verify")
        parts: list[Any] = [importlib.import_module(f"math_verify.{part}") for part in ("parser", "grader")]
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the rule math needs math-verify: pip install 'rewardflow[math]' ({error.name} is missing)"
        ) from error
    for part in parts:
        part.TIMEOUT_WARNING_SHOWN = True  # it warns callers without a timeout; the agent has one
    return module
