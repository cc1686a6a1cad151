"""What a verl run writes about itself."""

from __future__ import annotations

import pytest

from rewardflow.adapters.verl.step_metrics import StepAccount
from rewardflow.adapters.verl.training.group_board import GroupJudged, GroupReport
from rewardflow.flow.device_usage import UsageTotals
from rewardflow.types import Reward

USAGE = UsageTotals(busy_s={"update": 3.0}, idle_s={"reward": 1.0}, hidden_s=2.0)


def group(uid: str, *rewards: Reward) -> GroupReport:
    verdicts = tuple(GroupJudged(index=index, reward=reward) for index, reward in enumerate(rewards))
    return GroupReport(uid=uid, step=2, size=len(rewards), verdicts=verdicts, first_generated_s=10.0, judged_s=14.0)


def account() -> StepAccount:
    made = StepAccount(2, started_s=100.0, first_update_s=1.5)
    made.groups += [
        group("a", Reward(value=1.0, attempts=2, latency_s=3.0, cost_usd=0.5), Reward(kind="timeout", error="late")),
        group("b", Reward(kind="user_error", error="broke"), Reward(kind="user_error", error="broke")),
    ]
    made.dropped["too_few_verdicts"] += 1
    made.versions += [0, 1]
    return made


def test_the_metrics_say_what_failed_and_where_the_time_went() -> None:
    metrics = account().metrics(USAGE)
    assert metrics["rewardflow/verdicts/scored"] == 1
    assert metrics["rewardflow/verdicts/failed/timeout"] == 1
    assert metrics["rewardflow/verdicts/failed/user_error"] == 2
    assert metrics["rewardflow/groups/dropped/too_few_verdicts"] == 1
    assert (metrics["rewardflow/exposed_s"], metrics["rewardflow/hidden_s"]) == (1.0, 2.0)
    assert metrics["rewardflow/busy_s/update"] == 3.0
    assert metrics["rewardflow/cost_usd"] == 0.5
    assert metrics["rewardflow/staleness/max"] == 1
    assert metrics["rewardflow/latency_s/max"] == pytest.approx(3.0, rel=0.02)


def test_no_mean_is_made_of_failed_verdicts() -> None:
    report = account().report(USAGE, ended_s=104.0)
    assert (report.score_mean, report.num_scored, report.num_groups) == (1.0, 1, 1)
    assert report.duration_s == 4.0
