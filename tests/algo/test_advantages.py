"""The table of estimators: settings make the estimator they name, and failures affect none of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from algo.groups import ScoredBatch, scored_group
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.algo.advantages import ESTIMATORS, make_advantages
from rewardflow.algo.estimator import Estimator, TokenTargets
from rewardflow.algo.estimators.gae import AgainstValues
from rewardflow.algo.estimators.grpo import GroupRelative
from rewardflow.algo.estimators.reinforce_plus_plus import WhitenedReturns
from rewardflow.algo.reward_kl import KlInReward
from rewardflow.errors import InvalidInput
from rewardflow.flow.protocols import Advantages
from rewardflow.flow.records import Precomputed
from rewardflow.settings.algorithm_needs import ADVANTAGES
from rewardflow.settings.run_settings import AlgorithmSettings
from rewardflow.types import Rollout

WIDTH = 5
SCORES = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=6)
MASKS = st.lists(st.integers(0, 1), min_size=WIDTH, max_size=WIDTH)


def values_of(rollout: Rollout) -> torch.Tensor:
    """The values of a critic that expects more towards the end."""
    return torch.arange(sum(rollout.response_mask or ())) * 0.1


class WithValues:
    """Gives an estimator the values of a critic, and returns its advantages alone."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self.needs = estimator.needs

    def __call__(self, groups: Any, precomputed_of: Any = None, penalty_of: Any = None) -> list[list[Any]]:
        found = self._estimator(groups, lambda rollout: Precomputed(values=values_of(rollout)), penalty_of)
        return [[one.advantages_T if isinstance(one, TokenTargets) else one for one in group] for group in found]


def made(name: str, **settings: Any) -> Estimator:
    estimator: Any = make_advantages(AlgorithmSettings(advantage=name, **settings))  # type: ignore[arg-type]
    return WithValues(estimator) if ADVANTAGES[name].critic else estimator


def as_lists(advantages: Any) -> list[list[Any]]:
    return [[torch.as_tensor(one).tolist() for one in group] for group in advantages]


@pytest.mark.parametrize("name", ADVANTAGES)
@given(data=st.data())
def test_failures_get_exactly_zero_and_change_nothing_for_the_others(name: str, data: st.DataObject) -> None:
    alone, withal, places = [], [], []
    for number in range(data.draw(st.integers(1, 3))):
        scores = data.draw(SCORES)
        rows: list[tuple[float | None, list[int]]] = [(score, data.draw(MASKS)) for score in scores]
        alone.append(scored_group(*scores, masks=[mask for _, mask in rows], group_id=str(number), greedy=0))
        for _ in range(data.draw(st.integers(0, 2))):
            rows.insert(data.draw(st.integers(1, len(rows))), (None, data.draw(MASKS)))
        mixed = scored_group(*(score for score, _ in rows), masks=[mask for _, mask in rows], greedy=0)
        withal.append(mixed)
        places.append([score is not None for score, _ in rows])
    expected, found = as_lists(made(name)(alone)), as_lists(made(name)(withal))
    kept = [
        [one for one, is_scored in zip(group, group_places, strict=True) if is_scored]
        for group, group_places in zip(found, places, strict=True)
    ]
    left = [
        one
        for group, group_places in zip(found, places, strict=True)
        for one, is_scored in zip(group, group_places, strict=True)
        if not is_scored
    ]
    assert kept == expected
    assert all(one == 0.0 for one in left)


@pytest.mark.parametrize("name", [name for name, kind in ADVANTAGES.items() if kind.compares_group or kind.greedy])
def test_a_rollout_whose_siblings_all_failed_has_nothing_to_be_compared_with(name: str) -> None:
    masks = [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert made(name)([scored_group(None, 3.0, None, masks=masks, greedy=0)]) == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_groups_without_a_verdict_are_all_zero(name: str) -> None:
    masks = [[1, 1], [1, 0]]
    assert made(name)([scored_group(None, None, masks=masks, greedy=0)] * 2) == [[0.0, 0.0]] * 2
    assert list(made(name)([])) == []


@pytest.mark.parametrize("name", ["grpo", "grpo_passk", "rloo", "opo", "gpg", "remax"])
@given(score=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_a_group_of_equal_scores_gets_exactly_zero(name: str, score: float, size: int) -> None:
    masks = [[1] * (1 + i % 3) + [0] * (2 - i % 3) for i in range(size)]
    equal, _ = made(name)(
        [scored_group(*[score] * size, masks=masks, greedy=0), scored_group(0.0, 1.0, masks=[[1], [1]], greedy=0)]
    )
    assert list(equal) == [0.0] * size


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if name.startswith("reinforce")])
def test_what_is_whitened_is_exactly_zero_where_the_whole_batch_is_equal(name: str) -> None:
    masks = [[1, 1, 1], [1, 0, 0]]
    equal = made(name)([scored_group(0.1, 0.1, masks=masks)] * 3)
    assert not any(torch.as_tensor(one).any() for group in equal for one in group)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_made_needs_what_the_table_says(name: str) -> None:
    assert made(name).needs == ADVANTAGES[name].needs
    if ADVANTAGES[name].takes_scale:
        assert made(name, scale="batch").needs == "batch"


def test_the_table_has_every_estimator() -> None:
    assert list(ESTIMATORS) == list(ADVANTAGES)


def test_settings_make_the_advantages_they_name() -> None:
    plain: Advantages = make_advantages(AlgorithmSettings(scale="batch", discount=0.5))
    assert plain == GroupRelative(scale="batch", discount=0.5)
    penalised = make_advantages(AlgorithmSettings(advantage="reinforce_plus_plus", discount=0.9, reward_kl_coef=0.1))
    assert isinstance(penalised, KlInReward)
    assert penalised.estimator == WhitenedReturns(discount=0.9)


def test_gae_takes_its_settings_and_needs_the_batch_only_to_whiten() -> None:
    made_of = make_advantages(AlgorithmSettings(advantage="gae", discount=0.9, lam=0.8, whiten=False))
    assert made_of == AgainstValues(discount=0.9, lam=0.8, whiten=False)
    assert made_of.needs == "group"


def test_lengths_that_are_not_known_are_asked_for() -> None:
    for name in ("opo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        with pytest.raises(InvalidInput, match="need the response_mask of every rollout"):
            made(name)([scored_group(1.0, 0.0)])


@given(seed=st.integers(0, 1000))
def test_a_penalty_of_zero_changes_nothing(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = [
        scored_group(1.0, None, 0.25, masks=[[1, 1, 0], [1, 0, 0], [1, 1, 1]], greedy=0),
        scored_group(3.0, 0.0, masks=[[1, 1, 1], [1, 0, 1]], greedy=1),
    ]
    batch = ScoredBatch.of(groups, generator)
    for name in ADVANTAGES:
        free = made(name)(groups, None, lambda rollout: torch.zeros(sum(rollout.response_mask or ())))
        torch.testing.assert_close(batch.tokens_of(free), batch.tokens_of(made(name)(groups)))
