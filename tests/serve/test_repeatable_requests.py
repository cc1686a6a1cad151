"""Callers that ask again, on the virtual clock: one call, one verdict, and failures that stay."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.agent import RewardAgent
from rewardflow.serve.repeatable_requests import RepeatableRequests, SettledVerdicts
from rewardflow.serve.settings import ServedJob
from rewardflow.shared_agent.messages import RunFull
from rewardflow.shared_agent.service import Service

CALLS: Counter[str] = Counter()
JOB = ServedJob(run="a")


async def slow(solution_str: str) -> float:
    CALLS[solution_str] += 1
    await asyncio.sleep(300)
    if solution_str == "bad":
        raise ValueError("no")
    return float(solution_str)


def rollout(response: str = "1", **fields: Any) -> rf.Rollout:
    return rf.Rollout(group_id="g", response=response, **fields)


@contextlib.asynccontextmanager
async def requests_to(
    reward: Any = slow, *, max_waiting: int | None = None, **options: Any
) -> AsyncIterator[RepeatableRequests]:
    CALLS.clear()
    async with asyncio.TaskGroup() as tasks:
        options = {"timeout_s": None, "max_attempts": 1, **options}
        service = Service(
            lambda: RewardAgent(reward, serves_runs=True, **options),
            tasks.create_task,
            max_waiting_of=lambda run: max_waiting,
        )
        yield RepeatableRequests(service)
        await service.close()


async def ask(requests: RepeatableRequests, *rollouts: rf.Rollout, job: ServedJob = JOB) -> list[rf.Reward]:
    return [await future for future in await requests.ask(job, rollouts)]


def test_a_repeat_joins_the_call_in_flight_and_later_gets_the_settled_verdict() -> None:
    async def main() -> None:
        async with requests_to() as requests:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(180):
                    await asyncio.wait(await requests.ask(JOB, [rollout()]))
            assert [one.value for one in await ask(requests, rollout(), rollout())] == [1.0, 1.0]
            assert asyncio.get_running_loop().time() == pytest.approx(300, abs=1)
            assert [one.value for one in await ask(requests, rollout())] == [1.0]
            assert CALLS == {"1": 1}

    clock.run(main())


def test_a_failure_stays_and_is_not_paid_for_again() -> None:
    async def main() -> None:
        async with requests_to() as requests:
            first, again = await ask(requests, rollout("bad")), await ask(requests, rollout("bad"))
            assert (first[0].value, first[0].kind) == (None, "user_error")
            assert again == first
            assert CALLS == {"bad": 1}

    clock.run(main())


def test_what_nobody_judged_settles_nothing() -> None:
    async def unsettled(solution_str: str) -> float:
        CALLS[solution_str] += 1
        raise ConnectionError("down")

    async def main() -> None:
        async with requests_to(
            unsettled, max_attempts=2, outage_window=1, outage_give_up_s=1, max_concurrency=1
        ) as requests:
            many = [rollout(step=i) for i in range(40)]
            assert {one.kind for one in await ask(requests, *many)} & {"outage"}
            calls = CALLS["1"]
            await ask(requests, *many)
            assert CALLS["1"] > calls

    clock.run(main())


def test_another_response_at_the_same_place_is_another_request() -> None:
    async def main() -> None:
        async with requests_to() as requests:
            assert (await ask(requests, rollout("1")))[0].value == 1.0
            assert (await ask(requests, rollout("2")))[0].value == 2.0

    clock.run(main())


def test_a_group_that_grows_gets_each_verdict_at_once_and_one_that_stays_incomplete_is_forgotten() -> None:
    async def main() -> None:
        async with requests_to(incomplete_after_s=1000) as requests:
            first = await ask(requests, rollout("1", index=0, group_size=3))
            second = await ask(requests, rollout("2", index=1, group_size=3))
            assert [one.value for one in (*first, *second)] == [1.0, 2.0]
            host = await requests._service.open_host()
            assert host.statistics().agent.verdicts.pending_groups == 1
            await asyncio.sleep(2000)
            assert host.statistics().agent.verdicts.pending_groups == 0
            assert (await ask(requests, rollout("1", index=0, group_size=3))) == first
            assert CALLS == {"1": 1, "2": 1}

    clock.run(main())


def test_a_job_has_a_bounded_queue_and_repeats_need_no_room() -> None:
    async def main() -> None:
        async with requests_to(max_waiting=2) as requests:
            host = await requests._service.open_host()
            await requests.ask(JOB, [rollout("1"), rollout("2", step=1)])
            assert host.num_waiting() == {"a": 2}
            with pytest.raises(RunFull, match="may have 2 rollouts waiting"):
                await requests.ask(JOB, [rollout("3", step=2)])
            await requests.ask(JOB, [rollout("1")])
            await requests.ask(ServedJob(run="b"), [rollout("3", step=2)])
            await asyncio.sleep(301)
            assert host.num_waiting() == {}
            assert (await ask(requests, rollout("3", step=2)))[0].value == 3.0

    clock.run(main())


def test_a_place_that_another_rollout_had_is_free_when_that_one_is_judged() -> None:
    async def main() -> None:
        async with requests_to() as requests:
            await requests.ask(JOB, [rollout("1")])
            (taken,) = await ask(requests, rollout("2"))
            assert (taken.value, taken.kind) == (None, "user_error")
            assert "one rollout at a place at a time" in str(taken.error)
            await asyncio.sleep(301)
            assert (await ask(requests, rollout("2")))[0].value == 2.0

    clock.run(main())


def test_requests_of_no_step_are_batches_of_their_own_for_log() -> None:
    logged: list[list[str]] = []

    class Logging:
        async def compute_score(self, solution_str: str) -> float:
            return float(solution_str)

        async def log(self, *columns: list[Any]) -> None:
            logged.append(columns[-1])

    async def main() -> None:
        async with requests_to(Logging()) as requests:
            for first in range(0, 6, 2):
                batch = [rf.Rollout(group_id=str(n), response=str(n)) for n in (first, first + 1)]
                for future in await requests.ask(JOB, batch, is_batch=True):
                    await future
            await asyncio.sleep(1)
            assert logged == [["0", "1"], ["2", "3"], ["4", "5"]]
            host = await requests._service.open_host()
            assert host._agent.assembly._delivered_for_log == {}

    clock.run(main())


@pytest.mark.parametrize(
    "reward",
    [
        rf.Reward(value=1.0, explanation="x" * 400),
        rf.Reward(kind="user_error", error="x" * 100, traceback="x" * 300),
    ],
)
def test_settled_verdicts_are_kept_up_to_a_number_of_bytes(reward: rf.Reward) -> None:
    settled = SettledVerdicts(10_000)
    for number in range(100):
        settled.put(bytes([number]), reward)
    assert len(settled) == 10
    assert settled.get(bytes([0])) is None
    assert settled.get(bytes([99])) is not None
