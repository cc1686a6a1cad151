"""The rule of regular expressions.

Always true: a pattern that does not compile is refused when the rule is built, before any response. A response for
which a pattern backtracks for ever fails its own verdict only: an agent runs patterns in processes that it can kill.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rewardflow.errors import InvalidInput
from rewardflow.reward.code.processes.warm_processes import MAX_AT_ONCE, WarmProcesses
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.rules.rule import AnswerWorth, last, shown
from rewardflow.types import Reward, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex(AnswerWorth):
    """Checks patterns that a response must and must not match, and one whose match must equal the ground truth.

    `answer` takes its last match, and compares the group named `answer`, otherwise the first group, otherwise the whole
    match, without surrounding space. `ignore_case` applies to this comparison only; a pattern can use `(?i)`.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.rules.patterns:Regex", "600869d4788a2c66ec3a01dc05079391"
    )

    must: str | Sequence[str] = ()
    must_not: str | Sequence[str] = ()
    answer: str | None = None
    ignore_case: bool = False

    is_quick: ClassVar[bool] = False
    max_at_once: ClassVar[int] = MAX_AT_ONCE

    def __post_init__(self) -> None:
        for name in ("must", "must_not"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        patterns = [*self.must, *self.must_not, *([] if self.answer is None else [self.answer])]
        if not patterns:
            raise InvalidInput("regex needs at least one of must, must_not and answer, got none")
        for pattern in patterns:
            _check_pattern(pattern)

    def compute_score(self, rollout: Rollout) -> Reward:
        if self.answer is not None and rollout.ground_truth is None:
            raise InvalidInput("regex with answer= needs a ground truth, got None")
        return self.decide(rollout) or self._without_answer(f"nothing matches {shown(self.answer)}")

    def decide(self, rollout: Rollout) -> Reward | None:
        problem, found = _processes.call(
            must=self.must, must_not=self.must_not, answer=self.answer, response=rollout.response
        )
        if problem is not None:
            return self._reward(False, problem)
        if self.answer is None:
            return self._reward(True, "everything that must be there is, and nothing that must not")
        if found is None or rollout.ground_truth is None:
            return None
        answer, truth = found.strip(), str(rollout.ground_truth).strip()
        is_right = answer.casefold() == truth.casefold() if self.ignore_case else answer == truth
        return self._compared(is_right, shown(answer), shown(truth))

    def close(self) -> None:
        """Ends the processes that wait for the next response."""
        _processes.end_idle()


def match_patterns(
    must: Sequence[str], must_not: Sequence[str], answer: str | None, response: str
) -> tuple[str | None, str | None]:
    """Returns the first problem, and otherwise the text of the last answer."""
    for pattern in must:
        if re.search(pattern, response) is None:
            return f"nothing matches {shown(pattern)}, which must be there", None
    for pattern in must_not:
        if (found := re.search(pattern, response)) is not None:
            return f"{shown(found[0])} matches {shown(pattern)}, which must not be there", None
    match = None if answer is None else last(re.finditer(answer, response))
    if match is None:
        return None, None
    group: str | int = "answer" if "answer" in match.re.groupindex else min(match.re.groups, 1)
    return None, match[group] or ""


class _Patterns:
    """Builds `match_patterns` in a process."""

    def build(self) -> Callable[..., tuple[str | None, str | None]]:
        return match_patterns


_processes = WarmProcesses(_Patterns(), name="the rule regex")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise InvalidInput(f"a pattern must be a regular expression, got {shown(pattern)}: {error}") from error
