"""GPG: centred scores, scaled up by the share of rollouts that score 0."""

from __future__ import annotations

from algo.groups import scored_group

from rewardflow.algo.estimators.gpg import NonzeroScaled


def test_the_factor_counts_the_scored_rollouts_of_the_whole_batch() -> None:
    groups = [scored_group(1.0, 0.0, None), scored_group(0.0, 0.0)]
    assert NonzeroScaled()(groups) == [[2.0, -2.0, 0.0], [0.0, 0.0]]  # four scored rollouts, one of them not 0


def test_a_batch_of_zeros_gets_zero() -> None:
    assert NonzeroScaled()([scored_group(0.0, 0.0)]) == [[0.0, 0.0]]
