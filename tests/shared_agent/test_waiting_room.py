"""How much of a run's rollouts a host holds, and what a client does with the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from killable_host import KillableHost
from rollouts import rollout

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.agent import RewardAgent
from rewardflow.shared_agent.host_clients import HostClient
from rewardflow.shared_agent.messages import RunFull, ScoreRequest, pack_rollout
from rewardflow.shared_agent.samples import WaitingRoom

LIMIT = 10_000


async def judge(solution_str: str) -> float:
    await asyncio.sleep(10.0)
    return float(len(solution_str))


def request(*serials: int, size: int = 1000) -> ScoreRequest:
    return ScoreRequest([(serial, pack_rollout(rollout("x" * size), with_tokens=False)) for serial in serials])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6), st.integers(1, 4000), st.booleans()), max_size=60))
def test_a_run_holds_at_most_its_limit_or_one_message_and_all_is_given_back(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    waiting = WaitingRoom(LIMIT)
    clients = {run: HostClient(run, run, 1.0) for run in "ab"}
    last = 0
    for run, count, size, is_answered in steps:
        client = clients[run]
        serials = range(last + 1, last + count + 1)
        last += count
        before = waiting.num_bytes(run)
        try:
            waiting.add(client, [request(*serials, size=size)])
            client.serials.update(dict.fromkeys(serials))
            assert before == 0 or waiting.num_bytes(run) <= LIMIT
        except RunFull:
            assert before > 0
            assert waiting.num_bytes(run) == before
        if is_answered:
            waiting.release(client, list(client.serials))
            client.serials.clear()
            assert waiting.num_bytes(run) == 0
        assert waiting.num_bytes(run) == sum(client.sizes.values())


def test_a_message_that_comes_again_counts_once() -> None:
    waiting, client = WaitingRoom(LIMIT), HostClient("id", "run", 1.0)
    waiting.add(client, [request(1, 2)])
    client.serials.update({1: None, 2: None})
    once = waiting.num_bytes("run")
    waiting.add(client, [request(1, 2)])
    client.settled.add([3])
    waiting.add(client, [request(3)])
    assert waiting.num_bytes("run") == once > 2000


@pytest.mark.parametrize(
    "fields",
    [
        {"response": "x" * 6000},
        {"response": "\u00e9" * 6000},
        {"prompt": "x" * 6000},
        {"ground_truth": "x" * 6000},
        {"ground_truth": ["x" * 6000]},
        {"extra_info": {"page": "x" * 6000}},
        {"messages": [{"role": "user", "content": "x" * 6000}]},
        {"token_ids": list(range(6000))},
    ],
)
def test_rollouts_of_callers_in_this_process_count_with_all_that_they_hold(fields: dict[str, Any]) -> None:
    waiting, client = WaitingRoom(LIMIT), HostClient("id", "run", 1.0)
    large = rf.Rollout(**{"group_id": "g", "response": "", **fields})
    waiting.add_local(client, [(1, large)])
    assert waiting.num_bytes("run") > 6000
    with pytest.raises(RunFull, match="max_waiting_mb"):
        waiting.add_local(client, [(2, large)])
    waiting.release(client, [1])
    assert waiting.num_bytes("run") == 0


def test_a_run_may_have_so_many_rollouts_waiting_or_those_of_one_message() -> None:
    waiting = WaitingRoom(1e9, lambda run: 3 if run == "few" else None)
    few, many = HostClient("1", "few", 1.0), HostClient("2", "many", 1.0)
    waiting.add(many, [request(*range(1, 100))])
    waiting.add(few, [request(1, 2)])
    with pytest.raises(RunFull, match=r"run 'few' may have 3 rollouts waiting \(max_waiting\), got 2 and 2 more"):
        waiting.add(few, [request(3, 4)])
    waiting.add(few, [request(3)])
    assert waiting.num_rollouts() == {"few": 3, "many": 99}
    waiting.release(few, [1, 2, 3])
    waiting.add(few, [request(4, 5, 6, 7, 8)])
    assert waiting.num_rollouts() == {"few": 5, "many": 99}


class Counting(KillableHost):
    """Notes the most bytes that the run `large` had waiting."""

    most = 0

    async def _answer(self, ask: Any) -> Any:
        answer = await super()._answer(ask)
        if self.current is not None:
            clients = self.current.statistics().clients
            self.most = max(self.most, sum(one.num_bytes for one in clients if one.run == "large"))
        return answer


def test_a_run_beyond_its_limit_waits_and_loses_nothing_while_another_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        make = lambda: RewardAgent(judge, serves_runs=True, max_waiting_mb=LIMIT / 1e6)  # noqa: E731
        async with Counting(make) as host, host.client("large") as large, host.client("other") as other:
            tickets = []
            for number in range(40):
                tickets.append(large.submit(rf.Rollout(group_id=str(number), response="x" * 1000)))
                await asyncio.sleep(0.01)
            began_s = asyncio.get_running_loop().time()
            assert (await other.score(rollout("yy"))).value == 2.0
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(10.0, abs=0.1)
            groups = [group for ticket in tickets for group in await ticket.all()]
            assert [reward.value for group in groups for reward in group.rewards] == [1000.0] * 40
            assert 5000 < host.most <= LIMIT

    with caplog.at_level(logging.WARNING):
        clock.run(main())
    told = [record.message for record in caplog.records if "max_waiting_mb" in record.message]
    assert len(told) == 1
    assert "rollouts of run 'large' that wait for verdicts must fit into 10,000 bytes" in told[0]


def test_a_rollout_that_is_cancelled_while_there_is_no_room_is_never_judged() -> None:
    judged: list[str] = []

    async def noting(solution_str: str) -> float:
        judged.append(solution_str[0])
        await asyncio.sleep(10.0)
        return 1.0

    async def main() -> None:
        make = lambda: RewardAgent(noting, serves_runs=True, max_waiting_mb=0.0015)  # noqa: E731
        async with KillableHost(make) as host, host.client("run") as agent:
            first = agent.submit(rf.Rollout(group_id="1", response="a" * 1000))
            await asyncio.sleep(0.1)
            second = agent.submit(rf.Rollout(group_id="2", response="b" * 1000))
            third = agent.submit(rf.Rollout(group_id="3", response="c" * 1000))
            await asyncio.sleep(1.0)
            second.cancel()
            await first.all()
            await third.all()

    clock.run(main())
    assert judged == ["a", "c"]


def test_one_rollout_above_the_limit_is_judged_alone() -> None:
    async def main() -> float | None:
        make = lambda: RewardAgent(judge, serves_runs=True, max_waiting_mb=0.0001)  # noqa: E731
        async with KillableHost(make) as host, host.client("run") as agent:
            return (await agent.score(rollout("x" * 5000))).value

    assert clock.run(main()) == 5000.0
