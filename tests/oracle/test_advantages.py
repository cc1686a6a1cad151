"""Advantages of random batches are verl's; with failures they are verl's on the batch without the failed rollouts."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from algo.groups import ScoredBatch, scored_group
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import verl_calls

from rewardflow.algo.advantages import make_advantages
from rewardflow.algo.estimators.gae import gae
from rewardflow.algo.reward_kl import AdaptiveKl, KlInReward
from rewardflow.settings.run_settings import AlgorithmSettings, KlEstimator
from rewardflow.types import ScoredGroup

WIDTH = 6
SCORES = st.sampled_from([0.0, 0.0, 1.0, 1.0, -1.0]) | st.floats(-3, 3, width=32)
MASKS = st.lists(st.integers(0, 1), min_size=WIDTH, max_size=WIDTH).filter(any)


@st.composite
def groups(draw: st.DrawFn, group_id: str, with_greedy: bool) -> ScoredGroup:
    scores: list[float | None] = draw(st.lists(SCORES, min_size=2, max_size=4))
    if with_greedy:
        greedy = draw(st.integers(0, len(scores) - 1))
        return scored_group(*scores, masks=[draw(MASKS) for _ in scores], group_id=group_id, greedy=greedy)
    for _ in range(draw(st.integers(0, 2))):
        scores.insert(draw(st.integers(0, len(scores))), None)
    return scored_group(*scores, masks=[draw(MASKS) for _ in scores], group_id=group_id)


@st.composite
def batches(draw: st.DrawFn, with_greedy: bool = False) -> ScoredBatch:
    drawn = [draw(groups(str(number), with_greedy)) for number in range(draw(st.integers(1, 4)))]
    return ScoredBatch.of(drawn, torch.Generator().manual_seed(draw(st.integers(0, 2**31))))


ALGORITHMS: list[dict[str, Any]] = [
    {"advantage": "grpo"},
    {"advantage": "grpo", "scale": "none"},
    {"advantage": "grpo_passk"},
    {"advantage": "grpo_passk", "scale": "none"},
    {"advantage": "rloo"},
    {"advantage": "opo"},
    {"advantage": "gpg"},
    {"advantage": "reinforce_plus_plus"},
    {"advantage": "reinforce_plus_plus", "discount": 0.9},
    {"advantage": "reinforce_plus_plus_baseline"},
    {"advantage": "remax"},
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: "-".join(map(str, algorithm.values())))
@pytest.mark.parametrize("kl_estimator", [None, *get_args(KlEstimator)])
@settings(max_examples=30)
@given(data=st.data())
def test_advantages_are_those_of_verl(algorithm: dict[str, Any], kl_estimator: Any, data: st.DataObject) -> None:
    batch = data.draw(batches(with_greedy=algorithm["advantage"] == "remax"))
    rewards_BT = None
    if kl_estimator is not None:
        algorithm = {**algorithm, "reward_kl_coef": 0.3, "reward_kl_estimator": kl_estimator}
        rewards_BT = verl_calls.rewards_less_kl(batch, 0.3, kl_estimator)
    chosen = AlgorithmSettings(**algorithm)
    expected_BT = verl_calls.advantages(
        chosen.advantage,
        batch,
        normed=chosen.scale == "group",
        discount=chosen.discount,
        rewards_BT=rewards_BT,
    )
    given_BT = batch.tokens_of(make_advantages(chosen)(batch.groups, batch.precomputed_of))
    # Where all values are nearly equal, the root of the floor divides what float32 rounded: 1e-7 x 1e4.
    torch.testing.assert_close(given_BT, expected_BT, atol=2e-3 if "reinforce" in chosen.advantage else 1e-4, rtol=1e-4)


@settings(max_examples=50)
@given(batch=batches(), discount=st.floats(0.5, 1.0), lam=st.floats(0.0, 1.0), seed=st.integers(0, 2**31))
def test_gae_gives_the_returns_of_verl(batch: ScoredBatch, discount: float, lam: float, seed: int) -> None:
    mask_BT = batch.mask_BT
    if mask_BT.sum() < 2:
        return  # verl whitens no single token
    values_BT = torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(seed))
    returns_BT = verl_calls.gae(batch.scores_BT, values_BT, mask_BT, discount, lam)[1]
    for row, mask_T in enumerate(mask_BT.bool()):
        found_T = gae(batch.scores_BT[row][mask_T], values_BT[row][mask_T], discount, lam)[1]
        torch.testing.assert_close(found_T, returns_BT[row][mask_T], atol=1e-4, rtol=1e-4)


@settings(max_examples=50)
@given(batch=batches(), kl_estimator=st.sampled_from(get_args(KlEstimator)))
def test_the_coefficient_moves_by_the_kl_of_the_scored_rollouts_as_in_verl(
    batch: ScoredBatch, kl_estimator: Any
) -> None:
    made = make_advantages(
        AlgorithmSettings(reward_kl_coef=0.2, reward_kl_target=0.1, reward_kl_estimator=kl_estimator)
    )
    assert isinstance(made, KlInReward)
    made(batch.groups, batch.precomputed_of)
    seen = (verl_calls.kl_mean(batch, kl_estimator), len(batch.scored))
    [expected] = verl_calls.adapted(0.2, 0.1, 10_000, [seen])
    assert isinstance(made.controller, AdaptiveKl)
    assert made.controller.coef == pytest.approx(expected, rel=1e-6)
