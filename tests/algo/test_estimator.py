"""Estimators see scored rollouts alone, with scores and penalties at the right tokens."""

from __future__ import annotations

import pytest
import torch
from algo.groups import scored_group

from rewardflow.algo.estimator import ScoredRollout, TokenTargets, estimate_scored, num_sampled
from rewardflow.errors import InvalidInput

MASK = [0, 1, 1, 0, 1]
ROLLOUT = scored_group(2.0, masks=[MASK]).rollouts[0]


def test_failed_rollouts_are_left_out_and_get_zero_in_their_place() -> None:
    seen: list[list[float]] = []

    def estimate(groups: list[list[ScoredRollout]]) -> list[list[float]]:
        seen.extend([one.score for one in group] for group in groups)
        return [[10.0 * one.score for one in group] for group in groups]

    groups = [scored_group(None, 1.0, None, 2.0), scored_group(None)]
    assert estimate_scored(groups, estimate) == [[0.0, 10.0, 0.0, 20.0], [0.0]]
    assert seen == [[1.0, 2.0], []]


def test_a_score_counts_at_the_last_sampled_token_and_a_penalty_at_each() -> None:
    free = ScoredRollout(ROLLOUT, 2.0)
    assert (free.total, free.rewards_T().tolist()) == (2.0, [0.0, 0.0, 2.0])
    penalised = ScoredRollout(ROLLOUT, 2.0, torch.tensor([0.5, 0.25, 0.0], dtype=torch.float64))
    assert (penalised.total, penalised.rewards_T().tolist()) == (1.25, [-0.5, -0.25, 2.0])


def test_a_response_without_sampled_tokens_has_no_rewards() -> None:
    empty = scored_group(1.0, masks=[[0, 0]]).rollouts[0]
    assert ScoredRollout(empty, 1.0).rewards_T().tolist() == []


def test_lengths_need_a_mask() -> None:
    assert num_sampled(ROLLOUT) == 3
    with pytest.raises(InvalidInput, match="need the response_mask of every rollout"):
        num_sampled(scored_group(1.0).rollouts[0])


def test_targets_are_listed_by_their_advantages() -> None:
    assert TokenTargets(torch.tensor([0.5, -1.0]), torch.tensor([2.0, 3.0])).tolist() == [0.5, -1.0]
