"""What became of the samples that one of verl's own modes sent to the judge: told by its reward workers.

Always true: a sample counts as out from the moment a reward worker has it until its verdict is there, and time in which
some sample was out is counted once, however many were; a group is forgotten when it is taken. All times are those of
one clock, the tally's own, and leave it as durations, because it may be on another machine than whoever asks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rewardflow.adapters.verl.training.group_board import GroupJudged, GroupReport
from rewardflow.types import Reward


@dataclass(slots=True)
class _Group:
    """`asked_s` has the places of the samples that were generated, and when each went to the judge."""

    step: int
    asked_s: dict[int, float] = field(default_factory=dict)
    verdicts: list[GroupJudged] = field(default_factory=list)
    judged_s: float = 0.0


class Tally:
    """Kept in an actor of the job, next to the sampler, which makes it before there are any reward workers."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._num_out = 0
        self._out_s = 0.0
        self._changed_s = time.time()
        self._halted: str | None = None

    # -- told --

    async def asked(self, uid: str, index: int, step: int) -> None:
        """A sample is generated, and goes to the judge."""
        now = self._count_out(+1)
        group = self._groups.setdefault(uid, _Group(step))
        group.asked_s[index] = now

    async def answered(self, uid: str, index: int, reward: Reward) -> None:
        now = self._count_out(-1)
        group = self._groups.get(uid)
        if group is not None:  # else nobody waits for it any more
            group.verdicts.append(GroupJudged(index=index, reward=reward, asked_s=group.asked_s.get(index)))
            group.judged_s = now

    async def halt(self, reason: str) -> None:
        """No verdict will come any more."""
        self._halted = self._halted or reason

    # -- asked --

    async def take(self, uids: Sequence[str]) -> list[GroupReport]:
        """These groups, which leave. Of one that is unknown here nothing was generated."""
        return [_report(uid, self._groups.pop(uid, None)) for uid in uids]

    async def generated_for_s(self, uids: Sequence[str], size: int) -> float | None:
        """For how long every sample of these groups has been generated; None if one is still to come."""
        groups = [self._groups.get(uid) for uid in uids]
        if any(group is None or len(group.asked_s) < size for group in groups):
            return None
        return time.time() - max((max(group.asked_s.values()) for group in groups if group is not None), default=0.0)

    async def out_s(self) -> float:
        """Seconds so far in which some verdict was out."""
        self._count_out(0)
        return self._out_s

    async def halted(self) -> str | None:
        return self._halted

    def _count_out(self, change: int) -> float:
        now = time.time()
        if self._num_out > 0:
            self._out_s += now - self._changed_s
        self._changed_s = now
        self._num_out += change
        return now


def _report(uid: str, group: _Group | None) -> GroupReport:
    if group is None:
        return GroupReport(uid=uid, step=0, size=0, verdicts=(), error="nothing of it was generated")
    return GroupReport(
        uid=uid,
        step=group.step,
        size=len(group.asked_s),
        verdicts=tuple(group.verdicts),
        first_generated_s=min(group.asked_s.values()),
        judged_s=group.judged_s,
    )
