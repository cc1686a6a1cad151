"""A generator with its own weights changes only by publishing, and gets every weight by its name."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch
from torch import nn

from rewardflow.errors import FlowError
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.fakes import FakeGenerator
from rewardflow.flow.records import GroupRequest, Prompt
from rewardflow.train.weight_sync import NamedTensors, SyncedGenerator, WeightCopier


def named(module: nn.Module) -> NamedTensors:
    return (*module.named_parameters(), *module.named_buffers())


def test_weights_and_buffers_are_copied_by_publishing_and_by_nothing_else() -> None:
    async def main() -> None:
        original = nn.BatchNorm1d(3)
        own, engine = copy.deepcopy(original), FakeGenerator()
        with DeviceThread("test") as thread:
            generator = SyncedGenerator(engine, weights=lambda: named(original), model=own, thread=thread)
            with torch.no_grad():
                original.weight.add_(1.0)
                original.running_mean.add_(2.0)
            assert torch.equal(own.weight, torch.ones(3))
            await generator.publish(4)
            assert torch.equal(own.weight, original.weight)
            assert torch.equal(own.running_mean, original.running_mean)
            assert engine.version == 4
            request = GroupRequest(number=0, step=4, prompt=Prompt(uid="0"), group_size=2)
            assert [one.policy_version async for one in generator.generate([request])] == [4, 4]

    asyncio.run(main())


def test_one_weight_is_copied_into_its_place() -> None:
    module = nn.Linear(2, 3)
    copier = WeightCopier(module)
    given = {name: torch.randn_like(weight) for name, weight in module.named_parameters()}
    for name, weight in given.items():
        copier.put(name, weight)
    assert all(torch.equal(weight, given[name]) for name, weight in module.named_parameters())


def test_a_weight_of_another_name_or_shape_is_refused_by_name_and_shape() -> None:
    copier = WeightCopier(nn.Linear(2, 3))
    with pytest.raises(FlowError, match=r"got head of shape \(3,\) for no weight of that name"):
        copier.put("head", torch.zeros(3))
    with pytest.raises(FlowError, match=r"got bias of shape \(1,\) for one of shape \(3,\)"):
        copier.put_all([("bias", torch.zeros(1))])


def test_weights_that_are_missing_or_come_twice_are_refused() -> None:
    copier = WeightCopier(nn.Linear(2, 3))
    weight = ("weight", torch.zeros(3, 2))
    with pytest.raises(FlowError, match=r"all of the generator's, got none for bias of shape \(3,\)"):
        copier.put_all([weight])
    with pytest.raises(FlowError, match=r"must come once, got weight of shape \(3, 2\) twice"):
        copier.put_all([weight, weight])
