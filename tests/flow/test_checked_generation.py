"""A generator that breaks its promise ends the run with an error."""

import contextlib
import dataclasses
from typing import Any

import pytest
from flow.fake_run import FakeRun, judge_of

from rewardflow import clock
from rewardflow.errors import FlowError
from rewardflow.flow.checked_generation import generate_checked
from rewardflow.flow.fakes import FakeGenerator
from rewardflow.flow.records import GroupRequest, Prompt
from rewardflow.flow.schedule import Schedule


@pytest.mark.parametrize("fault", ["twice", "missing", "stale"])
def test_a_generator_that_breaks_its_promise_is_found_out(fault: str) -> None:
    class Faulty(FakeGenerator):
        async def generate(self, requests: Any) -> Any:
            async for rollout in super().generate(requests):
                if fault == "missing" and rollout.index == 1:
                    continue
                yield rollout
                if fault == "twice":
                    yield rollout

        async def publish(self, version: int) -> None:
            if fault != "stale":
                await super().publish(version)

    with pytest.raises(FlowError):
        FakeRun(Schedule(groups_per_step=2), judge_of(0), generator=Faulty()).run(steps=2)


@pytest.mark.parametrize("wrong", [{"step": 7}, {"group_size": 8}])
def test_a_rollout_that_says_something_else_than_was_asked_is_found_out(wrong: dict[str, int]) -> None:
    class Faulty(FakeGenerator):
        async def generate(self, requests: Any) -> Any:
            async for rollout in super().generate(requests):
                yield dataclasses.replace(rollout, **wrong)

    with pytest.raises(FlowError, match="with step=0 and group_size=4"):
        FakeRun(Schedule(groups_per_step=2), judge_of(0), generator=Faulty()).run(steps=1)


def test_a_caller_that_stops_early_closes_the_generator() -> None:
    is_closed = False

    class Noted(FakeGenerator):
        async def generate(self, requests: Any) -> Any:
            nonlocal is_closed
            try:
                async for rollout in super().generate(requests):
                    yield rollout
            finally:
                is_closed = True

    async def main() -> None:
        request = GroupRequest(number=0, step=0, prompt=Prompt(uid="0"), group_size=4)
        async with contextlib.aclosing(generate_checked(Noted(), [request])) as rollouts:
            assert (await anext(rollouts)).index == 0
        assert is_closed

    clock.run(main())
