"""A run under another judge: what correlates, what changes its sign, and who is best."""

from __future__ import annotations

import pytest

import rewardflow as rf
from rewardflow.judging.agreement import ScorePair
from rewardflow.judging.rejudging import JudgedBefore, Rejudging, best_changes, rejudging_of, sign_changes


def compared(*groups: tuple[list[float], list[float | None]]) -> Rejudging:
    before, verdicts = [], {}
    for step, (scores, others) in enumerate(groups):
        for i, (score, other) in enumerate(zip(scores, others, strict=True)):
            rollout = rf.Rollout(group_id="g", step=step, index=i, group_size=len(scores), response="x")
            before.append(JudgedBefore(rollout, score))
            verdicts[rollout.place] = rf.Reward(value=other, cost_usd=0.5)
    return rejudging_of("other", before, verdicts)


def test_the_same_verdicts_change_nothing() -> None:
    found = compared(([0.0, 1.0], [0.0, 1.0]), ([0.5, 0.25], [0.5, 0.25]))
    assert found.correlation is not None
    assert found.correlation.value == pytest.approx(1.0)
    assert (found.sign_changes.value, found.best_changes.value) == (0.0, 0.0)  # type: ignore[union-attr]
    assert (found.rollouts, found.groups, found.failed, found.cost_usd) == (4, 2, 0, 2.0)


def test_signs_and_best_answers_that_change_are_counted_within_groups() -> None:
    pairs = [
        *(ScorePair(score, other, "a") for score, other in ((1.0, 0.0), (0.0, 1.0))),
        *(ScorePair(score, other, "b") for score, other in ((1.0, 0.9), (0.0, 0.1))),
        ScorePair(1.0, 0.0, "alone"),
    ]
    assert sign_changes(pairs) == 0.5
    assert best_changes(pairs) == 0.5
    assert sign_changes([ScorePair(0.5, 0.0, "a"), ScorePair(0.5, 1.0, "a")]) == 1.0, "zero is a sign of its own"
    assert sign_changes([ScorePair(1.0, 0.0, "alone")]) is None
    assert best_changes([]) is None


def test_a_failed_verdict_counts_in_no_figure() -> None:
    found = compared(([0.0, 1.0], [None, 1.0]))
    assert (found.rollouts, found.failed) == (1, 1)


def test_each_step_has_its_means_under_both_judges() -> None:
    found = compared(([0.0, 0.5], [1.0, 1.0]), ([1.0, 1.0], [0.0, 0.5]))
    assert [(one.step, one.score, one.other) for one in found.steps] == [(0, 0.25, 1.0), (1, 1.0, 0.25)]
    assert found.to_json()["steps"][1] == {"step": 1, "rollouts": 2, "score": 1.0, "other": 0.25}
