"""Knows how far every group of a run is: which samples are with the judge, which groups are generated and judged.

Always true: a group leaves once; a wait returns as soon as its condition holds, so nobody polls, and raises
`AgentHalted` once no verdict will come any more; time with a verdict outstanding is counted once, however many are
outstanding.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

from rewardflow.adapters.verl.accounting.group_report import GroupReport, GroupVerdicts
from rewardflow.errors import AgentHalted
from rewardflow.types import Reward


class GroupBoard:
    """Runs in an actor of the job. Workers tell it what happened; the trainer or the sampler asks it.

    In verl's own modes the reward workers tell it of every sample (`asked`, `answered`), because no process has a whole
    group. In trainer mode `rewardflow` the process that generates a group also collects its verdicts. To send fewer
    messages it tells the board of the group's first sample (`asked`), of the end of generation (`generated`) and of the
    judged group (`judged`). `now` is the wall clock.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._groups: dict[str, GroupVerdicts] = {}
        self._generated: set[str] = set()
        self._reports: dict[str, GroupReport] = {}  # in the order in which they were judged
        self._outstanding: set[tuple[str, int]] = set()
        self._outstanding_s = 0.0
        self._counted_until_s = 0.0
        self._halted: str | None = None
        self._num_changes = 0
        self._changed = asyncio.Event()

    # -- called by workers --

    async def asked(self, uid: str, index: int, step: int) -> None:
        """A sample is generated, and goes to the judge."""
        self._count_outstanding()
        self._outstanding.add((uid, index))
        self._groups.setdefault(uid, GroupVerdicts(step)).asked_s[index] = self._now()

    async def answered(self, uid: str, index: int, reward: Reward) -> None:
        self._count_outstanding()
        self._outstanding.discard((uid, index))
        group = self._groups.get(uid)
        if group is not None:  # else the group has left
            group.answered(index, reward, at_s=self._now())

    async def generated(self, uid: str) -> None:
        """Every sample of the group is generated, or cannot be."""
        self._generated.add(uid)
        self._change()

    async def judged(self, report: GroupReport) -> None:
        self._count_outstanding()
        self._outstanding = {sample for sample in self._outstanding if sample[0] != report.uid}
        self._generated.add(report.uid)
        self._reports[report.uid] = report
        self._change()

    async def validated(self) -> None:
        """A group for validation is over. The board keeps nothing of it."""
        self._change()

    async def halt(self, reason: str) -> None:
        """No verdict will come any more. The first reason counts."""
        self._halted = self._halted or reason
        self._change()

    # -- called by the trainer or the sampler --

    async def take(self, uids: Sequence[str]) -> list[GroupReport]:
        """Removes these groups and returns their reports."""
        return [self._take(uid) for uid in uids]

    async def take_outstanding_s(self) -> float:
        """Returns the seconds with a verdict outstanding since the last call."""
        self._count_outstanding()
        seconds, self._outstanding_s = self._outstanding_s, 0.0
        return seconds

    async def generated_for_s(self, uids: Sequence[str], size: int) -> float | None:
        """Returns for how long every sample of these groups has been generated; None if some are still to come."""
        groups = [self._groups.get(uid) for uid in uids]
        if any(group is None or len(group.asked_s) < size for group in groups):
            return None
        return self._now() - max((max(group.asked_s.values()) for group in groups if group is not None), default=0.0)

    async def raise_if_halted(self) -> None:
        self._goes_on()

    async def num_changes(self) -> int:
        return self._num_changes

    async def wait_for_change(self, since: int) -> None:
        while self._goes_on() and self._num_changes == since:
            await self._changed.wait()

    async def wait_until_generated(self, uids: Sequence[str]) -> None:
        wanted = set(uids)
        while self._goes_on() and not wanted <= self._generated:
            await self._changed.wait()

    async def wait_until_judged(self, uids: Sequence[str], count: int) -> list[GroupReport]:
        """Returns the reports of those of these groups that are judged, at least `count`, in the order of judging."""
        wanted = set(uids)
        while self._goes_on() and len(wanted & self._reports.keys()) < count:
            await self._changed.wait()
        return [report for uid, report in self._reports.items() if uid in wanted]

    async def wait_until_first_judged(self, uids: Sequence[str], count: int) -> list[GroupReport]:
        """Returns the reports of these groups in their order, up to the first that is not judged: at least `count`."""
        while self._goes_on() and not self._reports.keys() >= set(uids[:count]):
            await self._changed.wait()
        return [self._reports[uid] for uid in itertools.takewhile(self._reports.__contains__, uids)]

    def _take(self, uid: str) -> GroupReport:
        self._generated.discard(uid)
        group = self._groups.pop(uid, None)
        report = self._reports.pop(uid, None)
        if report is not None:
            return report
        if group is None:
            return GroupReport(uid=uid, step=0, size=0, verdicts=(), error="nothing of it was generated")
        return group.report(uid, size=len(group.asked_s), judged_s=group.answered_s)

    def _goes_on(self) -> bool:
        """Raises once no verdict will come any more: then the run must neither train on the rest nor wait."""
        if self._halted is not None:
            raise AgentHalted(f"the reward agent gave up: {self._halted}")
        return True

    def _count_outstanding(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._outstanding:
            self._outstanding_s += now - self._counted_until_s
        self._counted_until_s = now

    def _change(self) -> None:
        self._num_changes += 1
        self._changed.set()  # wakes all that wait now;
        self._changed = asyncio.Event()  # later ones wait for the next change
