"""Chooses the groups that DAPO trains on (`algorithm.filter_groups`): those whose samples differ in a metric.

Always true: a group is chosen by its own verdicts only.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.adapters.verl.verl_verdict import accuracy_of
from rewardflow.errors import FlowError
from rewardflow.types import Reward

MAX_BATCHES = 10  # of generation per step where `max_num_gen_batches` is 0, so that no step costs without end

_SCORES = ("score", "seq_reward", "seq_final_reward", "reward")  # verl's names for the score itself


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """`metric` is verl's `filter_groups.metric`; `max_batches` bounds how often a step generates."""

    metric: str
    max_batches: int = MAX_BATCHES

    def differs(self, report: GroupReport) -> bool:
        """Whether verdicts that did not fail differ. As in verl, a lone one has none to agree with, and may train.

        A restored group was chosen before.
        """
        if is_restored(report):
            return True
        values = [self._value(verdict.reward) for verdict in report.verdicts if verdict.reward.value is not None]
        return len(values) == 1 or len(set(values)) > 1

    def _value(self, reward: Reward) -> float | None:
        if self.metric in _SCORES:
            return reward.value
        if self.metric == "acc":
            return accuracy_of(reward)
        if self.metric not in reward.extras:
            raise FlowError(
                f"algorithm.filter_groups.metric must be a number that the reward returns, got {self.metric!r} and a "
                f"verdict with {', '.join(sorted(reward.extras)) or 'no numbers beside its score'}"
            )
        value: float | None = reward.extras[self.metric]
        return value


def num_verdicts(report: GroupReport) -> int:
    return sum(verdict.reward.value is not None for verdict in report.verdicts)


def is_restored(report: GroupReport) -> bool:
    """Whether a checkpoint brought the group back: then its verdicts are with its rows."""
    return report.size == 0
