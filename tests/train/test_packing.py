"""Rows are split by their lengths alone, and nothing of them is lost in the tensors."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import rollout

from rewardflow.errors import InvalidInput
from rewardflow.train.packing import TokenRow, pack, split_passes

CPU = torch.device("cpu")


@given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 200))
def test_every_row_is_in_one_pass_and_only_a_row_that_is_alone_exceeds_the_budget(
    lengths: list[int], budget: int
) -> None:
    passes = split_passes(lengths, budget)
    assert sorted(index for indices in passes for index in indices) == list(range(len(lengths)))
    for indices in passes:
        assert len(indices) == 1 or len(indices) * max(lengths[index] for index in indices) <= budget


@given(lengths=st.lists(st.integers(1, 50), min_size=2, max_size=40), budget=st.integers(1, 200))
def test_a_pass_ends_only_where_one_more_row_would_exceed_the_budget(lengths: list[int], budget: int) -> None:
    passes = split_passes(lengths, budget)
    for indices in passes[:-1]:
        assert (len(indices) + 1) * max(lengths[index] for index in indices) > budget


@given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 200))
def test_without_padding_the_tokens_of_a_pass_are_those_of_its_rows(lengths: list[int], budget: int) -> None:
    passes = split_passes(lengths, budget, padding_free=True)
    assert sorted(index for indices in passes for index in indices) == list(range(len(lengths)))
    for indices in passes:
        assert len(indices) == 1 or sum(lengths[index] for index in indices) <= budget
    for indices, after in itertools.pairwise(passes):
        assert sum(lengths[index] for index in indices) + lengths[after[0]] > budget


def test_rows_of_about_the_same_length_go_together() -> None:
    assert split_passes([2, 9, 3, 8, 2], 18) == [[1, 3], [2, 0, 4]]


def test_packed_rows_are_padded_on_the_right_and_know_their_sampled_tokens() -> None:
    packed = pack([TokenRow.of(rollout([5, 6], [7])), TokenRow.of(rollout([1], [2, 3, 4]))], CPU)
    assert packed.input_ids_BL.tolist() == [[5, 6, 7, 0], [1, 2, 3, 4]]
    assert packed.token_ids_N.tolist() == [7, 2, 3, 4]
    assert packed.mask_BT.tolist() == [[True, False, False], [True, True, True]]
    assert packed.by_row(torch.tensor([10.0, 20.0, 30.0, 40.0])).tolist() == [[10, 0, 0], [20, 30, 40]]


def test_rows_without_padding_follow_one_another_with_positions_of_their_own() -> None:
    rows = [TokenRow.of(rollout([5, 6], [7])), TokenRow.of(rollout([1], [2, 3, 4]))]
    packed = pack(rows, CPU, padding_free=True)
    assert packed.input_ids_BL.tolist() == [[5, 6, 7, 1, 2, 3, 4]]
    assert packed.position_ids_BL is not None
    assert packed.position_ids_BL.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert packed.token_ids_N.tolist() == [7, 2, 3, 4]
    assert packed.by_row(torch.tensor([10.0, 20.0, 30.0, 40.0])).tolist() == [[10, 0, 0], [20, 30, 40]]
    assert packed.inputs(drops_last=True)["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2]]


def test_tokens_between_two_sampled_ones_that_the_policy_did_not_sample_are_left_out() -> None:
    packed = pack([TokenRow.of(rollout([1], [2, 3, 4, 5], response_mask=[0, 1, 0, 0, 1]))], CPU)
    assert packed.position_N.tolist() == [1, 4]
    assert packed.token_ids_N.tolist() == [2, 5]


def test_a_row_without_a_response_packs_to_nothing() -> None:
    packed = pack([TokenRow.of(rollout([1, 2], []))], CPU)
    assert packed.mask_BT.shape == (1, 0)
    assert packed.by_row(torch.empty(0)).shape == (1, 0)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"token_ids": None}, "got lengths None and 2 in rollout 0 of group 'g' in step 0"),
        ({"response_mask": None}, "got lengths 2 and None"),
        ({"response_mask": [0, 1, 1]}, "token_ids and response_mask of the same length"),
        ({"response_mask": [1, 1]}, "the first token of a rollout cannot be sampled"),
    ],
)
def test_a_rollout_that_cannot_be_trained_on_is_refused_by_name(fields: dict[str, object], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        TokenRow.of(rollout([1], [2], **fields))
