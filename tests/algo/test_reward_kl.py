"""KL in the reward: tokens pay where they are, failures do not pay, and the coefficient moves once a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from algo.groups import FIXED, ScoredBatch, scored_group

from rewardflow.algo.estimators.grpo import GroupRelative
from rewardflow.algo.estimators.reinforce_plus_plus import WhitenedReturns
from rewardflow.algo.estimators.rloo import LeaveOneOut
from rewardflow.algo.reward_kl import AdaptiveKl, FixedKl, KlInReward, PaidKl
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Precomputed

MASKS = [[1, 1], [1, 0], [1, 1]]
GROUP = scored_group(1.0, 0.0, None, masks=MASKS)
OLD = {0: [-1.0, -1.0], 1: [-1.0], 2: [100.0, 100.0]}
REFERENCE = {0: [-1.5, -2.0], 1: [-1.0], 2: [0.0, 0.0]}


def precomputed_of(rollout: Any) -> Precomputed:
    return Precomputed(old=torch.tensor(OLD[rollout.index]), reference=torch.tensor(REFERENCE[rollout.index]))


def test_an_estimator_of_outcomes_takes_the_score_less_all_that_was_paid() -> None:
    # The first rollout pays 0.2 x (0.5 + 1.0), the second nothing.
    [advantages] = KlInReward(LeaveOneOut(), controller=FixedKl(0.2))([GROUP], precomputed_of)
    assert advantages == pytest.approx([0.7, -0.7, 0.0])


def test_an_estimator_of_tokens_takes_each_payment_where_it_falls() -> None:
    [[first, second, failed]] = KlInReward(WhitenedReturns(), controller=FixedKl(0.2))([GROUP], precomputed_of)
    returns = torch.tensor([1.0 - 0.1 - 0.2, 1.0 - 0.2, 0.0])
    expected = (returns - returns.mean()) / returns.std()
    torch.testing.assert_close(torch.cat([first, second]), expected)  # type: ignore[list-item]
    assert failed == 0.0


def test_a_fixed_coefficient_stays_and_needs_no_more_than_the_estimator() -> None:
    fixed = KlInReward(GroupRelative(), controller=FixedKl(0.2))
    fixed([GROUP], precomputed_of)
    assert (fixed.controller, fixed.needs) == (FixedKl(0.2), "group")


def test_an_adaptive_coefficient_moves_after_the_batch_by_the_kl_of_scored_rollouts() -> None:
    controller = AdaptiveKl(0.2, target=0.1, horizon=10)
    adaptive = KlInReward(GroupRelative(), controller=controller)
    assert adaptive.needs == "batch"
    first = adaptive([GROUP], precomputed_of)
    assert first == KlInReward(GroupRelative(), controller=FixedKl(0.2))([GROUP], precomputed_of)
    assert adaptive.controller == controller.after(0.75 / 2, 2)
    assert adaptive.controller.coef == pytest.approx(0.2 * (1 + 0.2 * 2 / 10))


def test_what_was_paid_is_told_once_with_the_coefficient_it_was_paid_with() -> None:
    adaptive = KlInReward(GroupRelative(), controller=AdaptiveKl(0.2, target=0.1, horizon=10))
    adaptive([GROUP], precomputed_of)
    adaptive([], precomputed_of)
    assert adaptive.take_paid() == PaidKl(0.75 / 2, 0.2)
    assert adaptive.take_paid() == PaidKl(None, 0.2)


def test_a_call_without_rollouts_moves_nothing() -> None:
    controller = AdaptiveKl(0.2, target=0.1, horizon=10)
    adaptive = KlInReward(GroupRelative(), controller=controller)
    assert list(adaptive([], precomputed_of)) == []
    adaptive([scored_group(None, None, masks=MASKS[:2])], precomputed_of)
    assert adaptive.controller == controller


def test_below_the_target_the_coefficient_falls_and_at_the_target_it_stays() -> None:
    controller = AdaptiveKl(1.0, target=0.5, horizon=100)
    assert controller.after(0.5, 10) == controller
    assert controller.after(0.45, 10).coef == pytest.approx(0.99)
    assert controller.after(-9.0, 10).coef == pytest.approx(0.98)  # the error counts up to 0.2


@pytest.mark.parametrize(
    ("precomputed", "problem"),
    [
        (Precomputed(reference=torch.zeros(2)), "got no old for rollout 0"),
        (Precomputed(), "got no old and no reference for rollout 0"),
        (Precomputed(old=torch.zeros(3), reference=torch.zeros(3)), "one entry for each sampled token"),
    ],
)
def test_log_probs_that_are_missing_or_of_another_length_are_refused(precomputed: Precomputed, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        KlInReward(GroupRelative(), controller=FixedKl(0.1))([GROUP], lambda rollout: precomputed)


def test_a_policy_that_is_the_reference_pays_nothing() -> None:
    batch = ScoredBatch(groups=FIXED.groups, old=FIXED.old, reference=FIXED.old)
    for estimator in ("k1", "k2", "k3", "abs"):
        penalised = KlInReward(GroupRelative(), controller=FixedKl(5.0), kl_estimator=estimator)  # type: ignore[arg-type]
        assert penalised(batch.groups, batch.precomputed_of) == GroupRelative()(batch.groups)
