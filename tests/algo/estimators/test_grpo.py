"""GRPO: scores are compared with the group's mean; failures get no advantage and affect no other rollout."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from algo.groups import scored_group
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.algo.estimators.grpo import GroupRelative
from rewardflow.errors import InvalidInput

BY_GROUP = GroupRelative(scale="group", discount=1.0)
UNSCALED = GroupRelative(scale="none", discount=1.0)
BY_BATCH = GroupRelative(scale="batch", discount=1.0)

scores_lists = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=8)


# verl 0.9.1, compute_grpo_outcome_advantage on one token per response, index [0, 0, 0, 0, 1, 1, 1, 2, 2],
# with norm_adv_by_std_in_grpo=True and then False.
SCORES = ((1.0, 0.0, 0.5, 0.25), (3.0, -1.0, 2.0), (7.0, 7.0))
VERL_NORMED = ((1.317462, -1.0246927, 0.1463847, -0.439154), (0.8006404, -1.1208967, 0.3202561), (0.0, 0.0))
VERL_CENTRED = ((0.5625, -0.4375, 0.0625, -0.1875), (1.6666666, -2.3333335, 0.6666666), (0.0, 0.0))


@pytest.mark.parametrize(("advantages", "expected"), [(BY_GROUP, VERL_NORMED), (UNSCALED, VERL_CENTRED)])
def test_advantages_of_scored_groups_are_those_of_verl(
    advantages: GroupRelative, expected: Sequence[Sequence[float]]
) -> None:
    groups = [scored_group(*scores) for scores in SCORES]
    for got, wanted in zip(advantages(groups), expected, strict=True):
        assert got == pytest.approx(wanted, rel=1e-6, abs=1e-7)


def test_the_spread_of_the_batch_is_that_of_all_its_scores_while_each_group_keeps_its_own_mean() -> None:
    groups = [scored_group(1.0, 0.0, None), scored_group(4.0, None, 8.0)]
    spread = torch.tensor([1.0, 0.0, 4.0, 8.0], dtype=torch.float64).std().item() + 1e-6
    first, second = BY_BATCH(groups)
    assert first == pytest.approx((0.5 / spread, -0.5 / spread, 0.0))
    assert second == pytest.approx((-2.0 / spread, 0.0, 2.0 / spread))


@given(scores=scores_lists, places=st.lists(st.integers(0, 7), max_size=4))
@pytest.mark.parametrize("advantages", [BY_GROUP, UNSCALED, BY_BATCH], ids=lambda advantages: advantages.scale)
def test_failures_get_exactly_zero_and_change_nothing_for_the_others(
    advantages: GroupRelative, scores: list[float], places: list[int]
) -> None:
    mixed: list[float | None] = list(scores)
    for place in places:
        mixed.insert(place, None)
    [without] = advantages([scored_group(*scores)])
    [withal] = advantages([scored_group(*mixed)])
    assert [got for got, score in zip(withal, mixed, strict=True) if score is not None] == list(without)
    assert all(got == 0.0 for got, score in zip(withal, mixed, strict=True) if score is None)


@given(score=st.floats(-1e6, 1e6), size=st.integers(1, 9))
@pytest.mark.parametrize("advantages", [BY_GROUP, UNSCALED, BY_BATCH], ids=lambda advantages: advantages.scale)
def test_a_group_of_equal_scores_gets_exactly_zero(advantages: GroupRelative, score: float, size: int) -> None:
    equal, _ = advantages([scored_group(*[score] * size, None), scored_group(0.0, 1.0)])
    assert list(equal) == [0.0] * (size + 1)


def test_a_rollout_whose_siblings_all_failed_has_nothing_to_be_compared_with() -> None:
    for advantages in (BY_GROUP, UNSCALED, BY_BATCH):
        assert advantages([scored_group(None, 3.0, None)]) == [[0.0, 0.0, 0.0]]


def test_a_group_without_a_verdict_is_all_zero() -> None:
    for advantages in (BY_GROUP, UNSCALED, BY_BATCH):
        assert advantages([scored_group(None, None)]) == [[0.0, 0.0]]


def test_without_discount_advantages_are_plain_numbers() -> None:
    [advantages] = BY_GROUP([scored_group(1.0, None, 0.0)])
    assert [type(advantage) for advantage in advantages] == [float, float, float]


def test_a_discount_fades_over_the_sampled_tokens_as_returns_do_in_verl() -> None:
    # verl 0.9.1, the returns of compute_reinforce_plus_plus_outcome_advantage with gamma=0.9 and rewards 2 and -1 on
    # the last sampled tokens, under masks [1, 1, 0, 0, 1, 1] and [1, 1, 1, 1, 0, 0]; the zeros of the masks left out.
    masks = ([0, 1, 1, 0, 0, 1, 1], [0, 1, 1, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0, 0])
    [[first, second, failed]] = GroupRelative(scale="none", discount=0.9)([scored_group(3.5, 0.5, None, masks=masks)])
    torch.testing.assert_close(first, torch.tensor([1.458, 1.62, 1.8, 2.0]) * 1.5 / 2)
    torch.testing.assert_close(second, torch.tensor([-0.729, -0.81, -0.9, -1.0]) * 1.5)
    assert failed == 0.0


def test_a_faded_advantage_is_float32_and_as_long_as_what_was_sampled() -> None:
    masks = ([0, 0, 1, 1, 1], [0, 0, 0, 0, 0])
    [[sampled, empty]] = GroupRelative(scale="group", discount=0.5)([scored_group(1.0, 0.0, masks=masks)])
    assert (sampled.dtype, sampled.shape, empty.shape) == (torch.float32, (3,), (0,))


def test_a_discount_without_masks_is_refused() -> None:
    with pytest.raises(InvalidInput, match="response_mask"):
        GroupRelative(scale="none", discount=0.5)([scored_group(1.0, 0.0)])


def test_only_the_spread_of_the_batch_has_to_wait_for_it() -> None:
    assert [advantages.needs for advantages in (BY_GROUP, UNSCALED, BY_BATCH)] == ["group", "group", "batch"]


@pytest.mark.parametrize("wrong", [{"scale": "std", "discount": 1.0}, {"scale": "group", "discount": 0.0}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"(scale|discount) must be"):
        GroupRelative(**wrong)  # type: ignore[arg-type]
