"""Log-ratios: at least float32, nothing outside the mask, one side differentiated."""

from __future__ import annotations

import torch

from rewardflow.algo.log_ratio import bounded, log_ratio


def test_a_base_that_asks_for_a_gradient_gets_none() -> None:
    base_T = torch.zeros(3, requires_grad=True)
    log_probs_T = torch.ones(3, requires_grad=True)
    log_ratio(log_probs_T, base_T, torch.ones(3)).sum().backward()
    assert base_T.grad is None
    assert torch.equal(log_probs_T.grad, torch.ones(3))  # type: ignore[arg-type]


def test_half_precision_is_widened_before_the_subtraction_and_double_is_kept() -> None:
    assert log_ratio(torch.ones(1).half(), torch.ones(1).half(), torch.ones(1)).dtype == torch.float32
    assert log_ratio(torch.ones(1).double(), torch.ones(1), torch.ones(1)).dtype == torch.float64


def test_outside_the_mask_there_is_zero_even_for_nan_and_infinities() -> None:
    wrong_T = torch.tensor([float("nan"), float("inf"), float("-inf"), 2.0])
    assert log_ratio(wrong_T, wrong_T - 1, torch.tensor([0, 0, 0, 1])).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_a_bounded_ratio_can_be_exponentiated_and_squared() -> None:
    largest = bounded(torch.tensor([1e9, float("inf"), -1e9])).exp().square()
    assert torch.isfinite(largest).all()
    assert (largest > 0).all()
