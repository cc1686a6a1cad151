"""The verdicts of one group, and its report."""

from __future__ import annotations

from rewardflow.adapters.verl.accounting.group_report import GroupVerdicts
from rewardflow.types import Reward


def test_a_report_has_every_verdict_with_the_time_of_its_asking() -> None:
    verdicts = GroupVerdicts(step=3)
    verdicts.asked_s |= {1: 10.0, 0: 12.0}
    verdicts.answered(0, Reward(value=1.0), at_s=15.0)
    verdicts.answered(1, Reward(kind="timeout", error="late"), at_s=20.0)
    report = verdicts.report("a", size=2, judged_s=verdicts.answered_s)
    assert [(one.index, one.reward.kind, one.asked_s) for one in report.verdicts] == [
        (0, None, 12.0),
        (1, "timeout", 10.0),
    ]
    assert (report.step, report.first_generated_s, report.judged_s) == (3, 10.0, 20.0)


def test_a_group_of_which_nothing_was_generated_has_no_first_time() -> None:
    report = GroupVerdicts(step=3).report("a", size=2, judged_s=5.0, error="ToolFailed: no such tool")
    assert (report.first_generated_s, report.verdicts, report.error) == (None, (), "ToolFailed: no such tool")
