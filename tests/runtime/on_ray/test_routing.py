"""Which engine gets which groups, with engines that take as long as a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.errors import FlowError
from rewardflow.flow.records import GroupRequest, Prompt
from rewardflow.generate.engines import Routing
from rewardflow.generate.hf import factory as hf
from rewardflow.generate.vllm import factory as vllm
from rewardflow.runtime.on_ray.routing import routed
from rewardflow.settings.run_settings import GenerationSettings
from rewardflow.types import Rollout


@dataclass(slots=True)
class Engines:
    """Each rollout of an engine takes its number of seconds, all of a call at the same time."""

    seconds: Sequence[float]
    given: list[tuple[int, int]] = field(default_factory=list)  # engine and group, in order
    num_calls: int = 0
    running: list[int] = field(default_factory=list)
    most: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running = [0] * len(self.seconds)
        self.most = [0] * len(self.seconds)

    async def stream(self, engine: int, part: Sequence[GroupRequest]) -> AsyncGenerator[list[Rollout]]:
        self.num_calls += 1
        self.given += [(engine, request.number) for request in part]
        count = sum(request.group_size for request in part)
        self.running[engine] += count
        self.most[engine] = max(self.most[engine], self.running[engine])
        try:
            await asyncio.sleep(self.seconds[engine])
            yield [rollout(request, index) for request in part for index in range(request.group_size)]
        finally:
            self.running[engine] -= count


def rollout(request: GroupRequest, index: int) -> Rollout:
    return Rollout(group_id=request.group_id, index=index, group_size=request.group_size, response="")


def groups(count: int, group_size: int = 2) -> list[GroupRequest]:
    return [
        GroupRequest(number=number, step=0, prompt=Prompt(uid=str(number), text=""), group_size=group_size)
        for number in range(count)
    ]


def all_of(requests: Sequence[GroupRequest], engines: Engines, routing: Routing) -> list[Rollout]:
    async def run() -> list[Rollout]:
        return [one async for one in routed(requests, len(engines.seconds), engines.stream, routing)]

    return clock.run(run())


@given(
    st.integers(0, 60),
    st.integers(1, 5),
    st.lists(st.floats(0.1, 9.0), min_size=1, max_size=4),
    st.integers(1, 8),
    st.none() | st.integers(1, 40),
)
@settings(deadline=None, max_examples=60)
def test_every_rollout_is_generated_once_and_no_engine_has_more_than_it_has_room_for(
    count: int, group_size: int, seconds: list[float], lanes: int, room: int | None
) -> None:
    engines = Engines(seconds)
    found = all_of(groups(count, group_size), engines, Routing(lanes, room))
    places = [(one.group_id, one.index) for one in found]
    assert len(places) == len(set(places)) == count * group_size
    if room is not None:
        assert max(engines.most) <= max(room, lanes * group_size)
        assert engines.running == [0] * len(seconds)


def test_an_engine_that_is_three_times_as_fast_generates_three_times_as_much() -> None:
    engines = Engines([1.0, 3.0])
    all_of(groups(400), engines, Routing(lanes=4, room=8))
    shares = [sum(engine == number for engine, _ in engines.given) for number in range(2)]
    assert shares[0] == pytest.approx(3 * shares[1], rel=0.05)


def test_few_groups_are_spread_over_all_engines() -> None:
    engines = Engines([1.0, 1.0, 1.0])
    all_of(groups(6), engines, Routing(lanes=8, room=512))
    assert sorted(engine for engine, _ in engines.given) == [0, 0, 1, 1, 2, 2]


def test_groups_are_given_out_in_their_order() -> None:
    engines = Engines([1.0, 2.0])
    all_of(groups(50), engines, Routing(lanes=2, room=8))
    assert [number for _, number in engines.given] == list(range(50))


def test_a_call_has_many_groups_where_there_are_many() -> None:
    engines = Engines([1.0, 1.0])
    all_of(groups(1024, group_size=8), engines, vllm.FACTORY.routing(GenerationSettings(max_sequences=256)))
    assert engines.num_calls == 128  # each of 64 rollouts
    assert engines.most == [512, 512]


def test_an_engine_that_decodes_batches_is_given_its_share_at_once() -> None:
    engines = Engines([1.0, 1.0])
    all_of(groups(9), engines, hf.FACTORY.routing(GenerationSettings()))
    assert engines.num_calls == 2


def test_an_error_of_an_engine_is_raised_and_ends_the_others() -> None:
    engines = Engines([5.0, 5.0])

    async def stream(engine: int, part: Sequence[GroupRequest]) -> AsyncGenerator[list[Rollout]]:
        if engine == 1:
            raise FlowError("it broke")
        async with contextlib.aclosing(engines.stream(engine, part)) as batches:
            async for batch in batches:
                yield batch

    async def run() -> None:
        async for _ in routed(groups(4), 2, stream, Routing(lanes=2, room=4)):
            pass

    with pytest.raises(FlowError, match="it broke"):
        clock.run(run())
    assert engines.running == [0, 0]


def test_whoever_stops_listening_stops_all_engines() -> None:
    engines = Engines([1.0, 50.0])

    async def run() -> None:
        async with contextlib.aclosing(routed(groups(40), 2, engines.stream, Routing(lanes=2, room=8))) as rollouts:
            async for _ in rollouts:
                break
        assert engines.running == [0, 0]

    clock.run(run())
    assert len(engines.given) < 40
