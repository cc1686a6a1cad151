"""The rule for mathematical answers: compares expressions by their value.

Always true: an expression whose numbers would be too large is neither computed nor shown, only its text is. An
expression that sympy cannot finish fails its own verdict only: an agent runs sympy in processes that it can kill.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from rewardflow.errors import InvalidInput
from rewardflow.extras import install_command
from rewardflow.reward.code.processes.warm_processes import MAX_AT_ONCE, WarmProcesses
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.rules.number_size import is_too_large
from rewardflow.services.rules.rule import AnswerWorth, shown
from rewardflow.types import Reward, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Math(AnswerWorth):
    r"""Compares MATH-style answers (`\boxed{\frac{1}{2}}` and 0.5) with math-verify, symbolically.

    Needs `rewardflow[math]`. math-verify's own timeouts use signals, which only work in a main thread, so they are off
    and the agent's timeout applies. Only the last `tail_chars` of a response are read: the answer is there. An answer
    such as `9^{9999999}` counts as right if the truth is the same text; otherwise it counts as unanswered.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.rules.symbolic:Math", "1d230a0289b488bb590960e12bbc5196"
    )

    tail_chars: int = 4000

    is_quick: ClassVar[bool] = False
    max_at_once: ClassVar[int] = MAX_AT_ONCE

    def __post_init__(self) -> None:
        if self.tail_chars < 1:
            raise InvalidInput(f"tail_chars must be at least 1, got tail_chars={self.tail_chars}")

    def compute_score(self, rollout: Rollout) -> Reward:
        compared = self._compare(rollout)
        if compared.outcome == "no truth":
            raise InvalidInput(f"math needs a ground truth it can read, got {shown(rollout.ground_truth)}")
        if compared.outcome == "too large":
            return self._without_answer(f"{compared.answer} is too large to compare with {compared.truth}")
        return self._judged(compared) or self._without_answer("no mathematical answer found")

    def decide(self, rollout: Rollout) -> Reward | None:
        return self._judged(self._compare(rollout))

    def close(self) -> None:
        """Ends the processes that wait for the next response."""
        _processes.end_idle()

    def _compare(self, rollout: Rollout) -> Comparison:
        truth = rollout.ground_truth
        if truth is None or isinstance(truth, bool) or not (text := str(truth).strip()):
            return Comparison("no truth")
        _check_installed()
        return Comparison(*_processes.call(response=rollout.response[-self.tail_chars :], truth=text))

    def _judged(self, compared: Comparison) -> Reward | None:
        if compared.outcome not in ("right", "wrong"):
            return None
        return self._compared(compared.outcome == "right", compared.answer, compared.truth)


Outcome = Literal["right", "wrong", "no truth", "no answer", "too large"]


class Comparison(NamedTuple):
    """How an answer compares with the truth, and both as short texts. Plain data, because it comes from a process."""

    outcome: Outcome
    answer: str = ""
    truth: str = ""


def compare_answers(response: str, truth: str) -> Comparison:
    """Compares by value; by text where a number would have more digits than a computer can handle."""
    # Without a box, math-verify would read only the first number of a bare answer.
    expected = _parse(truth if "\\boxed" in truth or "$" in truth else f"\\boxed{{{truth}}}")
    if not expected:
        return Comparison("no truth")
    answer = _parse(response)
    if not answer:
        return Comparison("no answer")
    texts = _as_found(answer), _as_found(expected)
    if any(map(is_too_large, (*answer, *expected))):
        is_same_text = not {one for one in answer if isinstance(one, str)}.isdisjoint(expected)
        return Comparison("right" if is_same_text else "too large", *texts)
    is_right = _math_verify().verify(expected, answer, timeout_seconds=None)
    return Comparison("right" if is_right else "wrong", *texts)


class _Expressions:
    """Builds `compare_answers` in a process, which loads sympy."""

    def build(self) -> Callable[..., Comparison]:
        _math_verify()
        return compare_answers


_processes = WarmProcesses(_Expressions(), name="the rule math")


def _parse(text: str) -> list[Any]:
    parsed: list[Any] = _math_verify().parse(text, parsing_timeout=None)
    return parsed


def _as_found(parsed: list[Any]) -> str:
    """Returns the text, never the expression: turning 9**9**9 into digits would not end."""
    return next((shown(one) for one in reversed(parsed) if isinstance(one, str)), "an expression")


@functools.cache
def _check_installed() -> None:
    """Refuses here what would otherwise fail in every new process."""
    try:
        missing = importlib.util.find_spec("math_verify") is None
    except ValueError:  # how Python answers for a module that must not be imported
        missing = True
    if missing:
        raise InvalidInput(f"the rule math needs math-verify: {install_command('math')} (math_verify is missing)")


def _math_verify() -> Any:
    try:
        module = importlib.import_module("math_verify")
        parts: list[Any] = [importlib.import_module(f"math_verify.{part}") for part in ("parser", "grader")]
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the rule math needs math-verify: {install_command('math')} ({error.name} is missing)"
        ) from error
    for part in parts:
        part.TIMEOUT_WARNING_SHOWN = True  # it warns callers without a timeout; the agent has one
    return module
