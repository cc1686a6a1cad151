"""What the agent asks of a reward whose answers come hours after its requests, perhaps to a later session.

Always true: an agent with a journal calls `resume` before its first call, and `all_saved` only if every verdict is in
the journal, so that nothing is paid for twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rewardflow.types import Rollout


@runtime_checkable
class LateAnswers(Protocol):
    """The attribute `late_answers` of such a reward."""

    @property
    def usual_limits(self) -> Mapping[str, Any]:
        """The limits that its calls need; those that the user sets win."""

    def resume(self, journal: Path, scope: str) -> None:
        """Finds, beside the journal, what earlier sessions have sent; `scope` names the run and the reward."""

    def reserved_before_usd(self, rollouts: Sequence[Rollout]) -> float:
        """Returns what earlier sessions set aside for requests of the same call that are still unanswered.

        It is the same call if it is about the same rollouts with the same inputs.
        """

    def all_saved(self) -> None:
        """Says, before the reward is closed, that what it was answered need not be kept: all verdicts are on disk."""


class SeveralLateAnswers:
    """The late answers of several judges, for a reward that asks all of them."""

    def __init__(self, parts: Iterable[LateAnswers]) -> None:
        self._parts = tuple(parts)

    @property
    def usual_limits(self) -> Mapping[str, Any]:
        return {name: value for part in self._parts for name, value in part.usual_limits.items()}

    def resume(self, journal: Path, scope: str) -> None:
        for number, part in enumerate(self._parts):
            part.resume(journal, f"{scope}\0{number}")

    def reserved_before_usd(self, rollouts: Sequence[Rollout]) -> float:
        return sum(part.reserved_before_usd(rollouts) for part in self._parts)

    def all_saved(self) -> None:
        for part in self._parts:
            part.all_saved()
