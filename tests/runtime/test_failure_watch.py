"""A run in which nothing is scored does not go on."""

from __future__ import annotations

import pytest

from rewardflow.errors import NothingScored
from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.reports import StepReport
from rewardflow.flow.step_record import TrainedSoFar
from rewardflow.runtime.failure_watch import FailureWatch
from rewardflow.settings.run_settings import FailureSettings
from rewardflow.types import Reward

TIMEOUT = Reward(kind="timeout", error="no answer within 60 s")
BROKEN = Reward(kind="user_error", error="KeyError: 'score'")
LATER = Reward(kind="user_error", error="KeyError: 'later'")


def report_of(*rewards: Reward) -> StepReport:
    usage = UsageTotals(busy_s={}, idle_s={}, hidden_s=0.0)
    return TrainedSoFar(0, 0.0).report(
        version=1, ended_s=1.0, usage=usage, dropped={}, rewards=rewards, averaged=[r for r in rewards if r.is_scored]
    )


def test_steps_without_a_score_end_the_run_with_the_first_reason_of_the_commonest_kind() -> None:
    watch = FailureWatch(FailureSettings(stop_after=3))
    watch.stepped(report_of(TIMEOUT, BROKEN, LATER))
    watch.stepped(report_of(LATER))
    with pytest.raises(NothingScored, match=r"the last 3 steps failed.* the first: user_error: KeyError: 'score'\."):
        watch.stepped(report_of(LATER))


def test_one_score_starts_the_count_again() -> None:
    watch = FailureWatch(FailureSettings(stop_after=2))
    for _ in range(3):
        watch.stepped(report_of(BROKEN))
        watch.stepped(report_of(BROKEN, Reward(value=0.0)))


def test_a_step_in_which_nothing_was_judged_does_not_count_and_null_never_stops() -> None:
    watch = FailureWatch(FailureSettings(stop_after=1))
    watch.stepped(report_of())
    never = FailureWatch(FailureSettings(stop_after=None))
    for _ in range(10):
        never.stepped(report_of(BROKEN))
