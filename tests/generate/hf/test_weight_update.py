"""Weights that arrive by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rewardflow.errors import FlowError
from rewardflow.generate.hf.weight_update import WeightUpdate


def test_weights_and_buffers_are_copied_into_their_places() -> None:
    module, trained = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    with torch.no_grad():
        trained.weight.add_(1.0)
        trained.running_mean.add_(2.0)
    update = WeightUpdate(module)
    update.put(trained.named_parameters())
    update.put(trained.named_buffers())
    update.end()
    assert torch.equal(module.weight, trained.weight)
    assert torch.equal(module.running_mean, trained.running_mean)


def test_a_weight_of_another_name_or_shape_is_refused() -> None:
    update = WeightUpdate(nn.Linear(2, 3))
    with pytest.raises(FlowError, match=r"got head of shape \(3,\) for no weight of that name"):
        update.put([("head", torch.zeros(3))])
    with pytest.raises(FlowError, match=r"got bias of shape \(1,\) for one of shape \(3,\)"):
        update.put([("bias", torch.zeros(1))])


def test_weights_that_are_missing_or_come_twice_are_refused() -> None:
    update, weight = WeightUpdate(nn.Linear(2, 3)), ("weight", torch.zeros(3, 2))
    update.end()  # no weight at all is no update
    update.put([weight])
    with pytest.raises(FlowError, match=r"all of the generator's, got none for bias of shape \(3,\)"):
        update.end()
    update.put([weight])
    with pytest.raises(FlowError, match=r"must come once, got weight of shape \(3, 2\) twice"):
        update.put([weight])
