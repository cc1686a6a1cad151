"""Weights that come by name reach the generator's model, all of them or none."""

import asyncio

import pytest
import torch
from torch import nn

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.fakes import FakeGenerator
from rewardflow.train.publishing.named_weights import NamedWeights, copy_named


def test_publishing_fills_the_model_with_what_the_trainer_has_then() -> None:
    model, trained = nn.Linear(2, 3), nn.Linear(2, 3)
    with DeviceThread("generator") as thread:
        generator = NamedWeights(FakeGenerator(), weights=trained.named_parameters, model=model, thread=thread)
        asyncio.run(generator.publish(1))
        published = trained.weight.detach().clone()
        with torch.no_grad():
            trained.weight.add_(1.0)
        assert torch.equal(model.weight, published)


def test_a_weight_that_is_missing_or_not_the_generators_is_refused_by_name() -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(InvalidInput, match="got none for bias"):
        copy_named([("weight", torch.zeros(3, 2))], model)
    with pytest.raises(InvalidInput, match="each once, got head"):
        copy_named([("head", torch.zeros(3, 2))], model)
