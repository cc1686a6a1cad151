"""What the generator asks of the actors, in which order. That it works is tested on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from rewardflow.clock import run
from rewardflow.errors import ClusterError
from rewardflow.flow.records import GroupRequest, Prompt
from rewardflow.generate.engines import Routing
from rewardflow.runtime.on_ray.remote_parts import EngineGenerator, SeparateGenerator
from rewardflow.runtime.on_ray.weight_buckets import BucketNote
from rewardflow.types import Rollout

BROKEN = 13  # the number of a group that no actor survives


class Actors:
    """One actor: answers a call after `seconds`, and notes when it begins and ends one."""

    def __init__(self, seconds: float, diary: list[str], answers: Sequence[Any] = ()) -> None:
        self._seconds = seconds
        self._diary = diary
        self._answers = iter(answers)
        self._free_at = 0.0

    def __len__(self) -> int:
        return 1

    def ask(self, method: str, arguments_of: Callable[[int], Any] = lambda _: (), *, num_returns: int = 1) -> list[Any]:
        answer = next(self._answers, None)
        self._diary.append(f"{method} {arguments_of(0)[0]}" if arguments_of(0) else method)
        ended = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        self._free_at = max(loop.time(), self._free_at) + self._seconds
        loop.call_at(self._free_at, ended.set_result, answer)
        return [(answer and answer[0], ended)] if num_returns == 2 else [ended]

    async def answered(self, answers: Sequence[Any]) -> list[Any]:
        found = [await answer for answer in answers]
        return [one[1] if isinstance(one, tuple) else one for one in found]

    async def all(self, method: str, arguments_of: Callable[[int], Any] = lambda _: ()) -> list[Any]:
        return await self.answered(self.ask(method, arguments_of))

    async def stream(self, _number: int, _method: str, part: Sequence[GroupRequest]) -> AsyncGenerator[list[Rollout]]:
        for request in part:
            await asyncio.sleep(self._seconds)
            if request.number == BROKEN:
                raise ClusterError("generator 0 of 1 failed")
            yield [Rollout(group_id=request.group_id, prompt="", response="")]


def request(number: int) -> GroupRequest:
    return GroupRequest(number=number, step=0, prompt=Prompt(uid=str(number), text=""), group_size=1)


def test_ranks_gather_a_bucket_while_engines_receive_the_one_before() -> None:
    diary: list[str] = []
    notes = [(f"bucket {n}", BucketNote(is_empty=False, is_last=n == 3)) for n in range(4)]

    async def scenario() -> float:
        ranks, engines = Actors(10, diary, notes), Actors(10, diary)
        await SeparateGenerator(engines, Routing(), ranks).publish(7)  # type: ignore[arg-type]
        return asyncio.get_running_loop().time()

    assert run(scenario()) == 60  # 40 to gather, 10 for the last bucket, 10 for the version; one by one it takes 90
    assert [line for line in diary if line.startswith("receive")] == [f"receive bucket {n}" for n in range(4)]
    assert diary[-1] == "publish 7"


@pytest.mark.parametrize(("taken", "seen"), [(3, ["0", "1"]), (1, ["0"])])
def test_engines_that_sleep_are_all_awake_until_nobody_wants_more(taken: int, seen: list[str]) -> None:
    diary: list[str] = []

    async def scenario() -> None:
        generator = EngineGenerator(Actors(1, diary), Routing(), sleeps=True)  # type: ignore[arg-type]
        async with aclosing(generator.generate([request(0), request(1)])) as rollouts:
            async for rollout in rollouts:
                diary.append(rollout.group_id)
                if len(diary) > taken:
                    break

    run(scenario())
    assert diary == ["begin_generating", *seen, "end_generating"]


def test_an_engine_that_failed_is_not_asked_to_sleep() -> None:
    diary: list[str] = []

    async def scenario() -> None:
        generator = EngineGenerator(Actors(1, diary), Routing(), sleeps=True)  # type: ignore[arg-type]
        with pytest.raises(ClusterError, match="failed"):
            [rollout async for rollout in generator.generate([request(BROKEN)])]

    run(scenario())
    assert diary == ["begin_generating"]
