"""What a verl run writes about itself."""

from __future__ import annotations

import pytest

from rewardflow.adapters.verl.accounting.group_report import GroupReport, JudgedSample
from rewardflow.adapters.verl.accounting.step_metrics import EQUAL_SCORES, VerlStepRecord
from rewardflow.flow.device_usage import UsageTotals
from rewardflow.types import Reward

USAGE = UsageTotals(busy_s={"update": 3.0}, idle_s={"reward": 1.0}, hidden_s=2.0)


def group(uid: str, *rewards: Reward) -> GroupReport:
    verdicts = tuple(JudgedSample(index=index, reward=reward) for index, reward in enumerate(rewards))
    return GroupReport(uid=uid, step=2, size=len(rewards), verdicts=verdicts, first_generated_s=10.0, judged_s=14.0)


def record() -> VerlStepRecord:
    made = VerlStepRecord.of(2, began_s=100.0)
    made.trained.first_update_s = 1.5
    scored = Reward(value=1.0, attempts=2, latency_s=3.0, cost_usd=0.5, components={"style": 0.5})
    made.group_left(group("a", scored, Reward(kind="timeout", error="late")), not_generated=0)
    broke = Reward(kind="user_error", error="broke")
    made.group_left(group("b", broke, broke), not_generated=1, dropped="too_few_verdicts")
    made.rows_trained([{"min_global_steps": 0, "response_len": 3}, {"min_global_steps": 1, "response_len": 5}])
    return made


def test_the_metrics_say_what_failed_and_where_the_time_went() -> None:
    metrics = record().metrics(USAGE)
    assert metrics["rewardflow/verdicts/scored"] == 1
    assert metrics["rewardflow/verdicts/failed/timeout"] == 1
    assert metrics["rewardflow/verdicts/failed/user_error"] == 2
    assert metrics["rewardflow/groups/trained"] == metrics["rewardflow/groups/dropped/too_few_verdicts"] == 1
    assert metrics["rewardflow/rollouts/not_generated"] == 1
    assert metrics["rewardflow/first_update_s"] == 1.5
    assert (metrics["rewardflow/exposed_s"], metrics["rewardflow/hidden_s"]) == (1.0, 2.0)
    assert metrics["rewardflow/busy_s/update"] == 3.0
    assert metrics["rewardflow/cost_usd"] == 0.5
    assert metrics["rewardflow/staleness/max"] == 1
    assert metrics["rewardflow/latency_s/max"] == pytest.approx(3.0, rel=0.02)


def test_no_mean_is_made_of_failed_verdicts() -> None:
    report = record().report(USAGE, ended_s=104.0)
    assert (report.score_mean, report.num_scored, report.num_groups) == (1.0, 1, 1)
    assert (report.reward_latency_mean_s, report.component_means) == (3.0, {"style": 0.5})


def test_the_report_is_that_of_any_run() -> None:
    report = record().report(USAGE, ended_s=104.0)
    assert (report.step, report.version, report.duration_s) == (2, 2, 4.0)
    assert (report.failed, report.dropped) == ({"timeout": 1, "user_error": 2}, {"too_few_verdicts": 1})
    assert (report.staleness_mean, report.staleness_max, report.response_tokens_mean) == (0.5, 1, 4.0)
    assert report.cost_usd == 0.5


def test_a_step_that_trains_nothing_says_how_its_verdicts_failed() -> None:
    reason = record().why_nothing_trains(min_group=2)
    assert reason.startswith("a step needs a group with at least rewardflow.min_group=2 verdicts, got none in ")
    assert reason.endswith("1 timeout, 2 user_error failed, among them late")


def test_a_step_whose_groups_all_agree_says_that_and_not_that_verdicts_are_missing() -> None:
    made = VerlStepRecord.of(2, began_s=100.0)
    for uid in "ab":
        made.group_left(group(uid, Reward(value=1.0), Reward(value=1.0)), not_generated=0, dropped=EQUAL_SCORES)
    assert made.why_nothing_trains(min_group=2) == (
        "a step needs a group with at least rewardflow.min_group=2 verdicts that differ, for algorithm.filter_groups, "
        "got none in 2 groups (2 equal_scores): 4 verdicts scored, none failed"
    )


def test_every_mini_batch_of_a_call_is_an_update_and_the_first_calls_end_counts() -> None:
    made = VerlStepRecord.of(2, began_s=100.0)
    tags = [[{"min_global_steps": 0, "response_len": 3}], [{"min_global_steps": 1, "response_len": 5}] * 2]
    made.updated(tags, {"actor/grad_norm": 0.5, "actor/pg_loss": 0.1}, first_ended_s=101.0)
    made.updated(tags[:1], {}, first_ended_s=109.0)
    assert made.trained.first_update_s == 1.0
    assert [(one.num_sequences, one.num_tokens) for one in made.trained.updates] == [(1, 3), (2, 10), (1, 3)]
    assert [one.metrics for one in made.trained.updates] == [{"policy_loss": 0.1}, {"policy_loss": 0.1}, {}]
    assert made.trained.staleness == [1, 0, 0, 1]
