"""Writes the groups of a verl run as events, beside the events of the calls that were made for them.

Always true: a group is written once, when it leaves; its times, which other processes took by the wall clock, are
converted to this process's clock, which the calls' times have.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.observe.events import REWARD_SOURCE, CallEnded, Event, GroupDelivered, VerdictReached
from rewardflow.reward.recorder import Recorder


class GroupEvents:
    """An event sink that also takes groups, and remembers when the first call for each sample began."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._began_s: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def emit(self, event: Event) -> None:
        if isinstance(event, CallEnded) and event.attempt == 1 and not event.is_hedge:
            self._began_s[event.group_id][event.index] = event.started_s
        self._recorder.emit(event)

    def left(self, groups: Sequence[GroupReport]) -> None:
        """Writes groups that were trained or dropped. Skips those without a verdict."""
        later_s = time.monotonic() - time.time()  # from the wall clock of the other processes to this one's
        for group in groups:
            if group.verdicts:
                self._write(group, self._began_s.pop(group.uid, {}), later_s)
        for step in sorted({group.step for group in groups if group.verdicts}):
            self._recorder.step_idle(step, REWARD_SOURCE)

    def _write(self, group: GroupReport, began_s: dict[int, float], later_s: float) -> None:
        at_s = group.judged_s + later_s
        for verdict in group.verdicts:
            first_s = began_s.get(verdict.index, min(began_s.values(), default=None))  # one call may be for a group
            asked_s = None if verdict.asked_s is None else verdict.asked_s + later_s
            waited_s = 0.0 if first_s is None or asked_s is None else max(0.0, first_s - asked_s)
            self._recorder.emit(
                VerdictReached.of(
                    verdict.reward,
                    step=group.step,
                    group_id=group.uid,
                    index=verdict.index,
                    at_s=at_s,
                    waited_s=waited_s,
                )
            )
        self._recorder.emit(
            GroupDelivered(
                at_s=at_s,
                step=group.step,
                group_id=group.uid,
                num_rollouts=group.size,
                num_failed=sum(verdict.reward.value is None for verdict in group.verdicts),
                first_submitted_s=at_s if group.first_generated_s is None else group.first_generated_s + later_s,
            )
        )
