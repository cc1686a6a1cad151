"""The value loss: the distance of values from returns, and the tokens whose gradient the clip stops."""

from __future__ import annotations

import pytest
import torch

from rewardflow.algo.value_loss import value_loss

OLD, RETURNS, MASK = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[3.0, 3.0, 3.0]]), torch.tensor([[1, 1, 0]])


def test_without_a_clip_it_is_half_the_squared_error_of_the_tokens_that_count() -> None:
    loss = value_loss(torch.tensor([[2.0, 0.0, 9.0]]), OLD, RETURNS, MASK, None)
    assert loss.loss_BT.tolist() == [[0.5, 4.5, 0.0]]
    assert not loss.clipped_BT.any()


def test_a_value_that_moved_further_than_the_clip_towards_its_return_is_pulled_no_more() -> None:
    values_BT = torch.tensor([[2.0, 1.25, 9.0]], requires_grad=True)
    loss = value_loss(values_BT, OLD, RETURNS, MASK, 0.5)
    assert loss.loss_BT.tolist() == [[0.5 * 1.5**2, 0.5 * 1.75**2, 0.0]]
    assert loss.clipped_BT.tolist() == [[True, False, False]]
    loss.loss_BT.sum().backward()
    assert values_BT.grad is not None
    assert values_BT.grad.tolist() == [[0.0, -1.75, 0.0]]


def test_a_value_that_moved_away_from_its_return_is_pulled_back_however_far_it_went() -> None:
    values_BT = torch.tensor([[-2.0, 0.0, 0.0]], requires_grad=True)
    value_loss(values_BT, OLD, RETURNS, MASK, 0.5).loss_BT.sum().backward()
    assert values_BT.grad is not None
    assert values_BT.grad.tolist() == [[-5.0, -3.0, 0.0]]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_nothing_outside_the_mask_reaches_loss_or_gradient(clip: float | None) -> None:
    values_BT = torch.tensor([[2.0, 1.0, float("nan")]], requires_grad=True)
    loss = value_loss(values_BT, OLD, torch.tensor([[3.0, 3.0, float("inf")]]), MASK, clip)
    loss.loss_BT.sum().backward()
    assert values_BT.grad is not None
    assert torch.isfinite(values_BT.grad).all()
    assert values_BT.grad[0, 2] == 0.0
