"""Collects the verdicts of one group, and reports the group when it leaves.

Always true: every sample that was sent to the judge has the time of its sending; a report never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rewardflow.types import Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSample:
    """One sample's verdict. `asked_s` is when the sample went to the judge, by the wall clock."""

    index: int
    reward: Reward
    asked_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """A group that needs no more verdicts. A sample that could not be generated has none; `error` says why.

    Times are by the wall clock, because they come from several machines.
    """

    uid: str
    step: int
    size: int
    verdicts: tuple[JudgedSample, ...]
    error: str | None = None
    first_generated_s: float | None = None
    judged_s: float = 0.0


@dataclass(slots=True)
class GroupVerdicts:
    """The verdicts of a group so far. `asked_s` has an entry for each sample that was generated, by its index."""

    step: int
    asked_s: dict[int, float] = field(default_factory=dict)
    judged: list[JudgedSample] = field(default_factory=list)
    answered_s: float = 0.0  # when the last verdict came

    def answered(self, index: int, reward: Reward, *, at_s: float) -> None:
        self.answered_s = at_s
        self.judged.append(JudgedSample(index=index, reward=reward, asked_s=self.asked_s.get(index)))

    def report(self, uid: str, *, size: int, judged_s: float, error: str | None = None) -> GroupReport:
        return GroupReport(
            uid=uid,
            step=self.step,
            size=size,
            verdicts=tuple(self.judged),
            error=error,
            first_generated_s=min(self.asked_s.values(), default=None),
            judged_s=judged_s,
        )
