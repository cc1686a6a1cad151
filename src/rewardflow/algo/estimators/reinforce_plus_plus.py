"""Whitens the returns of all tokens of the batch: REINFORCE++, and its form with the group's mean as baseline.

Always true: over the trained tokens of the batch the advantages have mean 0 and standard deviation 1, so longer
responses count more; a batch whose returns are all equal gets exactly 0. The form without baseline compares no
siblings, so groups may have one rollout.

With the baseline, whitening subtracts the batch's mean even from a group of equal scores, so that group need not get 0:
the mean over tokens of centred scores is not 0 if lengths differ.

See https://arxiv.org/abs/2501.03262.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.estimator import Advantage, ScoredOnlyEstimator, ScoredRollouts
from rewardflow.algo.score_statistics import mean, whitened
from rewardflow.settings.algorithm_needs import Needs
from rewardflow.settings.rules import within


@dataclass(frozen=True, slots=True, kw_only=True)
class WhitenedReturns(ScoredOnlyEstimator):
    """The reward from each sampled token on, discounted by the sampled tokens in between, whitened over the batch."""

    discount: float = 1.0

    def __post_init__(self) -> None:
        within("discount", self.discount, 0.0, 1.0, low_open=True)

    @property
    def needs(self) -> Needs:
        return "batch"

    def estimate(self, groups: ScoredRollouts) -> list[list[Advantage]]:
        tokens = [[returns(scored.rewards_T(), self.discount) for scored in group] for group in groups]
        return [list(group) for group in whitened_tokens(tokens)]


@dataclass(frozen=True, slots=True)
class WhitenedOutcomes(ScoredOnlyEstimator):
    """Score minus the group's mean, whitened over the tokens of the batch."""

    @property
    def needs(self) -> Needs:
        return "batch"

    def estimate(self, groups: ScoredRollouts) -> list[list[float]]:
        return _whitened_outcomes(groups)


def returns(rewards_T: Tensor, discount: float) -> Tensor:
    """Returns, for each token, its reward plus the discounted rewards after it."""
    if discount == 1.0:
        return rewards_T.flip(-1).cumsum(-1).flip(-1)
    returns_T, later = torch.zeros_like(rewards_T), torch.zeros((), dtype=rewards_T.dtype)
    for t in reversed(range(len(rewards_T))):
        later = returns_T[t] = rewards_T[t] + discount * later
    return returns_T


def whitened_tokens(groups: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Whitens all tokens together; returns float32."""
    tokens = [tokens_T for group in groups for tokens_T in group]
    if not tokens:
        return [[] for _ in groups]
    all_N = torch.cat(tokens)
    whitened_N = whitened(all_N, torch.ones_like(all_N)).float()
    parts = iter(torch.split(whitened_N, [len(tokens_T) for tokens_T in tokens]))
    return [[next(parts) for _ in group] for group in groups]


def _whitened_outcomes(groups: ScoredRollouts) -> list[list[float]]:
    totals = [[scored.total for scored in group] for group in groups]
    centred = [score - baseline for scores in totals for baseline in [mean(scores)] for score in scores]
    counts = [scored.num_tokens for group in groups for scored in group]
    if not centred:
        return [[] for _ in groups]
    values = iter(whitened(torch.tensor(centred, dtype=torch.float64), torch.tensor(counts)).tolist())
    return [[next(values) for _ in group] for group in groups]
