"""What is told about values: as torch would compute it over all tokens at once."""

import pytest
import torch
from tiny_training import rollout, sample
from torch._subclasses.fake_tensor import FakeTensorMode

from rewardflow.algo.estimator import TokenTargets
from rewardflow.train.loss_terms import TrainingRow
from rewardflow.train.packing import TokenRow, pack
from rewardflow.train.value_terms import NUM_SUMS, ValueTerms, value_metrics

TERMS = ValueTerms(aggregation="token_mean", clip=None)
RETURNS = [torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, -1.0])]
VALUES = [torch.tensor([0.9, 2.5, 3.0]), torch.tensor([0.0, -0.5])]


def rows_of(which: list[int]) -> list[TrainingRow]:
    rows = []
    for number in which:
        one = sample(rollout([1], [2] * len(RETURNS[number])), TokenTargets(RETURNS[number], RETURNS[number]))
        row = TokenRow.of(one.rollout)
        column = {"returns": RETURNS[number], "values": VALUES[number]}
        rows.append(TrainingRow(row=row, columns=column))
    return rows


def sums_of(which: list[int]) -> torch.Tensor:
    rows = rows_of(which)
    packed = pack([row.row for row in rows], torch.device("cpu"))
    return TERMS.numerator(rows, packed, torch.cat([VALUES[number] for number in which])).sums_S


def test_explained_variance_is_that_of_all_tokens_however_they_were_passed() -> None:
    together, apart = sums_of([0, 1]), sums_of([0]) + sums_of([1])
    torch.testing.assert_close(together, apart)
    returns_N, values_N = torch.cat(RETURNS), torch.cat(VALUES)
    metrics = value_metrics(apart, denominator=5.0)
    expected = 1 - (returns_N - values_N).var() / (returns_N.var() + 1e-5)
    assert metrics["explained_variance"] == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["value_loss"] == pytest.approx((0.5 * (returns_N - values_N).square().mean()).item(), rel=1e-5)
    assert (metrics["value_mean"], metrics["return_mean"]) == pytest.approx(
        (values_N.mean().item(), returns_N.mean().item())
    )


def test_an_idle_row_adds_nothing() -> None:
    idle = TERMS.idle_row()
    packed = pack([idle.row], torch.device("cpu"))
    values_N = torch.tensor([7.0], requires_grad=True)
    numerator = TERMS.numerator([idle], packed, values_N)
    numerator.value.backward()
    assert values_N.grad is not None
    assert values_N.grad.tolist() == [0.0]
    assert numerator.sums_S.tolist() == [0.0] * NUM_SUMS
    assert value_metrics(numerator.sums_S, 1.0) == {}


def test_a_pass_does_not_wait_to_learn_a_number_from_the_device() -> None:
    rows = rows_of([0, 1])
    packed = pack([row.row for row in rows], torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):  # which knows shapes, and would have to be asked for the number
        assert TERMS.numerator(rows, packed, torch.empty(5)).sums_S.shape == (NUM_SUMS,)
