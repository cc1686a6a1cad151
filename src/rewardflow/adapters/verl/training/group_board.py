"""How far the groups of a run are: who has been generated, who has been judged, in which order.

Always true: a group is told once that it is generated and once that it is judged, and the second implies the first;
a wait returns the moment its condition holds, so nobody looks again and again, and raises `AgentHalted` when no verdict
will come any more; time in which some verdict was out is
counted once, however many were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rewardflow.errors import AgentHalted
from rewardflow.types import Reward

# Of verl's configuration, for the workers that generate: the name of the actor that keeps the progress, and whether the
# reward judges whole groups.
BOARD_KEY = "rewardflow_board"
NEEDS_GROUPS_KEY = "rewardflow_needs_groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJudged:
    """One rollout's verdict, and when it was asked for. A rollout that could not be generated has none."""

    index: int
    reward: Reward
    asked_s: float | None = None  # by the wall clock


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """A group whose every rollout has an outcome. `error` says why some rollouts were not generated."""

    uid: str
    step: int
    size: int
    verdicts: tuple[GroupJudged, ...]
    error: str | None = None
    first_generated_s: float | None = None  # by the wall clock, as they come from several machines
    judged_s: float = 0.0


class Progress:
    """Told by the workers that generate, asked by the trainer. Everything happens on one event loop."""

    def __init__(self) -> None:
        self._generated: set[str] = set()
        self._reports: dict[str, GroupReport] = {}  # in the order of their coming
        self._out: set[str] = set()
        self._out_s = 0.0
        self._out_since_s = 0.0
        self._halted: str | None = None
        self._num_changes = 0
        self._changed = asyncio.Event()

    # -- told --

    async def verdict_out(self, uid: str) -> None:
        """The first rollout of the group is generated, and with the judge."""
        if not self._out:
            self._out_since_s = asyncio.get_running_loop().time()
        self._out.add(uid)

    async def generated(self, uid: str) -> None:
        self._generated.add(uid)
        self._change()

    async def judged(self, report: GroupReport) -> None:
        self._generated.add(report.uid)
        self._reports[report.uid] = report
        self._out_s = self._out_so_far()
        self._out.discard(report.uid)
        self._out_since_s = asyncio.get_running_loop().time()
        self._change()

    async def validated(self) -> None:
        """A group that nobody trains on is over: nothing is kept of it."""
        self._change()

    async def halt(self, reason: str) -> None:
        """No verdict will come any more."""
        self._halted = reason
        self._change()

    async def forget(self, uids: Iterable[str]) -> None:
        """Groups that have left."""
        for uid in uids:
            self._generated.discard(uid)
            self._reports.pop(uid, None)

    # -- asked --

    async def out_s(self) -> float:
        """Seconds so far in which some verdict was out."""
        return self._out_so_far()

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
        """The reports that there are of these groups, at least `count`, in the order of their coming."""
        wanted = set(uids)
        while self._goes_on() and len(wanted & self._reports.keys()) < count:
            await self._changed.wait()
        return [report for uid, report in self._reports.items() if uid in wanted]

    def _goes_on(self) -> bool:
        """Raises where no verdict will come any more: nobody is to train on the rest, or to wait for it."""
        if self._halted is not None:
            raise AgentHalted(f"the reward agent gave up: {self._halted}")
        return True

    def _out_so_far(self) -> float:
        now = asyncio.get_running_loop().time()
        return self._out_s + (now - self._out_since_s if self._out else 0.0)

    def _change(self) -> None:
        self._num_changes += 1
        self._changed.set()  # wakes everybody who waits now;
        self._changed = asyncio.Event()  # whoever comes later waits for the next change
