"""Aggregation: the values of verl, by parts that add up however a batch is split and whatever failed."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rewardflow.algo.aggregation import denominator, numerator, token_weights, trained_mask
from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import Aggregation

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
LONGEST = 16

VALUES_BT = torch.arange(1.0, 13.0).reshape(3, 4)
SAMPLED_BT = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])

# verl 0.9.1, agg_loss(VALUES, SAMPLED, mode, loss_scale_factor=16), and again with the second row masked whole, for
# token-mean, seq-mean-token-sum, seq-mean-token-mean and seq-mean-token-sum-norm.
VERL = {
    "token_mean": (5.6666665, 5.7142859),
    "seq_mean_token_sum": (17.0, 20.0),
    "seq_mean_token_mean": (6.0, 6.25),
    "fixed_length": (1.0625, 1.25),
}


def parts(aggregation: Aggregation, values_BT: Tensor, sampled_BT: Tensor, scored_B: Tensor) -> tuple[Tensor, Tensor]:
    mask_BT = trained_mask(sampled_BT, scored_B)
    return (
        numerator(values_BT, token_weights(aggregation, mask_BT)),
        denominator(aggregation, mask_BT, scored_B, LONGEST),
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_batch_has_the_value_it_has_in_verl_whether_or_not_a_row_failed(aggregation: Aggregation) -> None:
    for scored, expected in zip(([1, 1, 1], [1, 0, 1]), VERL[aggregation], strict=True):
        above, below = parts(aggregation, VALUES_BT, SAMPLED_BT, torch.tensor(scored))
        assert (above / below).item() == pytest.approx(expected)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Values, sampled tokens, scored rows, and a split of the rows into micro-batches; NaN where a row failed."""
    num_rows, num_tokens = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    values_BT = torch.randn(num_rows, num_tokens, generator=torch.Generator().manual_seed(draw(st.integers(0, 999))))
    rows = st.lists(st.booleans(), min_size=num_tokens, max_size=num_tokens)
    sampled_BT = torch.tensor(draw(st.lists(rows, min_size=num_rows, max_size=num_rows)))
    scored_B = torch.tensor(draw(st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)))
    values_BT[~scored_B] = float("nan")
    order = torch.tensor(draw(st.permutations(range(num_rows))))
    cuts = sorted(draw(st.sets(st.integers(1, num_rows))))
    return values_BT, sampled_BT, scored_B, list(torch.tensor_split(order, cuts))


@given(batch=batches())
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_numerators_and_denominators_of_micro_batches_add_up_to_those_of_the_batch(
    aggregation: Aggregation, batch: tuple[Tensor, Tensor, Tensor, list[Tensor]]
) -> None:
    values_BT, sampled_BT, scored_B, micro_batches = batch
    above, below = parts(aggregation, values_BT, sampled_BT, scored_B)
    split = [parts(aggregation, values_BT[rows], sampled_BT[rows], scored_B[rows]) for rows in micro_batches]
    torch.testing.assert_close(sum(part[0] for part in split), above, atol=1e-5, rtol=1e-5)
    assert sum(part[1] for part in split) == below


@given(batch=batches())
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_failed_row_might_as_well_not_be_there(
    aggregation: Aggregation, batch: tuple[Tensor, Tensor, Tensor, list[Tensor]]
) -> None:
    values_BT, sampled_BT, scored_B, _ = batch
    values_BT.requires_grad_()
    above, below = parts(aggregation, values_BT, sampled_BT, scored_B)
    alone = parts(aggregation, values_BT[scored_B], sampled_BT[scored_B], scored_B[scored_B])
    torch.testing.assert_close(above, alone[0])
    assert below == alone[1]
    (gradient_BT,) = torch.autograd.grad(above, values_BT)
    assert not gradient_BT[~scored_B].any()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_denominator_is_an_exact_float64_scalar_and_takes_the_mask_with_or_without_failed_rows(
    aggregation: Aggregation,
) -> None:
    scored_B = torch.tensor([True, False, True])
    raw = denominator(aggregation, SAMPLED_BT, scored_B, LONGEST)
    assert (raw.dtype, raw.shape) == (torch.float64, ())
    assert raw == denominator(aggregation, trained_mask(SAMPLED_BT, scored_B), scored_B, LONGEST)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_without_a_scored_row_the_denominator_is_zero_and_so_is_the_numerator(aggregation: Aggregation) -> None:
    above, below = parts(aggregation, VALUES_BT, SAMPLED_BT, torch.zeros(3))
    assert (above.item(), below.item()) == (0.0, 0.0)


def test_a_scored_rollout_without_trained_tokens_still_counts_as_a_sequence() -> None:
    sampled_BT = torch.tensor([[1, 1], [0, 0]])
    counts = {name: denominator(name, sampled_BT, torch.ones(2), LONGEST).item() for name in AGGREGATIONS}
    assert counts == {"token_mean": 2, "seq_mean_token_sum": 2, "seq_mean_token_mean": 2, "fixed_length": 32}


def test_scored_rows_that_do_not_fit_the_mask_are_refused() -> None:
    with pytest.raises(InvalidInput, match="one entry for each row"):
        trained_mask(SAMPLED_BT, torch.ones(4))


def test_an_unknown_aggregation_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"aggregation must be one of token_mean, .* got 'mean'"):
        token_weights("mean", SAMPLED_BT)  # type: ignore[arg-type]
