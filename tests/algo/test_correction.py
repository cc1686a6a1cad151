"""Weights and rejection: rejected tokens add nothing, and a response counts as a whole where it should."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rewardflow.algo.correction import Correction, behaviour_weights, correction, within_range
from rewardflow.settings.run_settings import AlgorithmSettings

# Ratios of three responses; the mask leaves out the last token of the second.
RATIOS_BT = torch.tensor([[2.0, 0.5, 1.0], [4.0, 1.5, 9.0], [0.1, 1.0, 1.0]])
MASK_BT = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
LOG_BT = torch.where(MASK_BT, RATIOS_BT.log(), 0.0)


@pytest.mark.parametrize(
    ("by", "above_cap", "expected"),
    [
        ("token", "leave_out", [[2.0, 0.5, 1.0], [0.0, 1.5, 0.0], [0.1, 1.0, 1.0]]),
        ("token", "truncate", [[2.0, 0.5, 1.0], [3.0, 1.5, 0.0], [0.1, 1.0, 1.0]]),
        ("sequence", "leave_out", [[1.0] * 3, [0.0] * 3, [0.1] * 3]),
        ("sequence", "truncate", [[1.0] * 3, [3.0, 3.0, 0.0], [0.1] * 3]),
    ],
)
def test_a_weight_above_the_cap_is_left_out_or_truncated(by: Any, above_cap: Any, expected: list[list[float]]) -> None:
    weights_BT, capped_BT = behaviour_weights(LOG_BT, MASK_BT, by, cap=3.0, above_cap=above_cap)
    torch.testing.assert_close(weights_BT, torch.tensor(expected))
    assert capped_BT.sum() == (1 if by == "token" else 2)


@pytest.mark.parametrize("above_cap", ["leave_out", "truncate"])
def test_without_a_cap_every_weight_stays(above_cap: Any) -> None:
    weights_BT, capped_BT = behaviour_weights(LOG_BT, MASK_BT, "sequence", cap=None, above_cap=above_cap)
    torch.testing.assert_close(weights_BT[1], torch.tensor([6.0, 6.0, 0.0]))
    assert not capped_BT.any()


@pytest.mark.parametrize(
    ("by", "bounds", "expected"),
    [
        ("token", (0.5, 2.0), [[1, 1, 1], [0, 1, 0], [0, 1, 1]]),
        ("sequence", (0.5, 2.0), [[1, 1, 1], [0, 0, 0], [0, 0, 0]]),
        ("sequence", (0.05, 7.0), [[1, 1, 1], [1, 1, 0], [1, 1, 1]]),
        ("sequence_mean", (0.4, 2.0), [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),  # the means are 1, 6 ** (1/2), 0.1 ** (1/3)
    ],
)
def test_what_leaves_the_range_is_left_out(by: Any, bounds: tuple[float, float], expected: list[list[int]]) -> None:
    assert within_range(LOG_BT, MASK_BT, by, bounds).int().tolist() == expected


def test_bounds_belong_to_the_range() -> None:
    exact_BT = torch.tensor([[math.log(0.5), math.log(2.0)]], dtype=torch.float64)
    assert within_range(exact_BT, torch.ones(1, 2, dtype=torch.bool), "token", (0.5, 2.0)).all()


def test_settings_say_what_is_corrected_and_the_sums_count_it() -> None:
    settings = AlgorithmSettings(
        behaviour_weights="token", behaviour_weight_cap=3.0, above_cap="truncate", reject="token"
    )
    found = correction(settings, LOG_BT.requires_grad_(), torch.zeros(3, 3), MASK_BT)
    sums = {name: total.item() for name, total in found.sums.items()}
    assert sums == pytest.approx(
        {"behaviour_weight": 10.1, "behaviour_weight_squared": 18.51, "behaviour_capped": 1, "rejected": 2}
    )
    assert not any(total.requires_grad for total in found.sums.values())
    nothing = correction(AlgorithmSettings(), LOG_BT, torch.zeros(3, 3), MASK_BT)
    assert (nothing.weights_BT, nothing.kept_BT, nothing.sums) == (None, None, {})


def test_a_rejected_token_adds_nothing_even_if_its_loss_is_not_a_number() -> None:
    loss_BT = torch.tensor([[float("nan"), 2.0]], requires_grad=True)
    kept = Correction(weights_BT=None, kept_BT=torch.tensor([[False, True]])).apply(loss_BT)
    kept.sum().backward()
    assert kept.tolist() == [[0.0, 2.0]]
    assert loss_BT.grad is not None
    assert loss_BT.grad.tolist() == [[0.0, 1.0]]
