"""Weights that arrive by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rewardflow.errors import FlowError
from rewardflow.train.publishing.weights_by_name import WeightsByName


def test_a_weight_is_copied_into_its_place() -> None:
    module = nn.Linear(2, 3)
    into = WeightsByName(module)
    given = {name: torch.randn_like(weight) for name, weight in module.named_parameters()}
    for name, weight in given.items():
        into.put(name, weight)
    assert all(torch.equal(weight, given[name]) for name, weight in module.named_parameters())


def test_a_weight_of_another_name_or_shape_is_refused() -> None:
    into = WeightsByName(nn.Linear(2, 3))
    with pytest.raises(FlowError, match=r"got head of shape \(3,\) for no weight of that name"):
        into.put("head", torch.zeros(3))
    with pytest.raises(FlowError, match=r"got bias of shape \(1,\) for one of shape \(3,\)"):
        into.put("bias", torch.zeros(1))
