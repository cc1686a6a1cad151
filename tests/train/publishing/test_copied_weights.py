"""A generator with weights of its own changes only when it is told to."""

import asyncio
import copy

import torch

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.fakes import FakeGenerator
from rewardflow.flow.records import GroupRequest, Prompt
from rewardflow.train.publishing.copied_weights import CopiedWeights


def test_weights_and_buffers_are_copied_by_publishing_and_by_nothing_else() -> None:
    async def main() -> None:
        original = torch.nn.BatchNorm1d(3)
        own, engine = copy.deepcopy(original), FakeGenerator()
        with DeviceThread("test") as thread:
            generator = CopiedWeights(engine, original=original, copy=own, thread=thread)
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
