"""Which groups `algorithm.filter_groups` lets train."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.adapters.verl.accounting.group_report import GroupReport, JudgedSample
from rewardflow.adapters.verl.training.group_filter import GroupFilter, is_restored, num_verdicts
from rewardflow.errors import FlowError
from rewardflow.types import Reward


def report(*scores: float | None, **extras: Any) -> GroupReport:
    rewards = [Reward(value=score, extras=extras) if score is not None else Reward(kind="timeout") for score in scores]
    verdicts = tuple(JudgedSample(index=index, reward=reward) for index, reward in enumerate(rewards))
    return GroupReport(uid="u", step=1, size=len(scores), verdicts=verdicts)


@pytest.mark.parametrize("metric", ["score", "seq_reward", "acc"])
def test_a_group_trains_if_its_verdicts_differ_and_failed_ones_do_not_count(metric: str) -> None:
    group_filter = GroupFilter(metric)
    assert group_filter.differs(report(0.0, 1.0, 0.0))
    assert not group_filter.differs(report(1.0, 1.0, None))


def test_a_prompt_with_one_rollout_trains_as_in_verl_because_nothing_agrees_with_it() -> None:
    assert GroupFilter("score").differs(report(0.0))
    assert not GroupFilter("score").differs(report(None))


def test_a_number_of_the_rewards_own_decides_where_it_is_named() -> None:
    verdicts = (*report(0.1, acc=1.0).verdicts, *report(0.9, acc=1.0).verdicts)
    group = GroupReport(uid="u", step=1, size=2, verdicts=verdicts)
    assert GroupFilter("score").differs(group)
    assert not GroupFilter("acc").differs(group)


def test_an_accuracy_that_the_reward_leaves_open_is_the_score_as_in_validation() -> None:
    assert GroupFilter("acc").differs(report(0.1, 0.9, acc=None))


def test_a_metric_that_no_verdict_has_is_named_with_those_it_has() -> None:
    with pytest.raises(FlowError, match="got 'format' and a verdict with words"):
        GroupFilter("format").differs(report(0.1, words=3))


def test_a_group_from_a_checkpoint_was_chosen_before() -> None:
    restored = GroupReport(uid="u", step=1, size=0, verdicts=())
    assert is_restored(restored)
    assert GroupFilter("score").differs(restored)
    assert num_verdicts(report(1.0, None)) == 1
