"""What several clients see of one agent, on the virtual clock: shares, groups, death and return."""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import math
import pstats
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killable_host import KillableHost, UnreliableHost

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import BudgetExhausted, InvalidInput
from rewardflow.observe.run_directory import read_steps
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.simulated_service import SimulatedService
from rewardflow.shared_agent.host import Host
from rewardflow.shared_agent.host_clients import LEASE_S
from rewardflow.shared_agent.messages import Bye, Cancel, Post, ScoreRequest, Take, UnknownClient, pack_rollout


def rollouts(count: int, *, size: int = 1, step: int = 0, name: str = "q", **fields: Any) -> list[rf.Rollout]:
    return [
        rf.Rollout(group_id=f"{name}{i // size}", index=i % size, group_size=size, response=str(i), step=step, **fields)
        for i in range(count)
    ]


def agent_of(reward: Any, **options: Any) -> RewardAgent:
    return RewardAgent(reward, serves_runs=True, **options)


async def echo(solution_str: str) -> float:
    await asyncio.sleep(0.1)
    return float(solution_str)


CALLS: Counter[str] = Counter()


async def counted(solution_str: str) -> float:
    """Counts outside of itself: what a function holds is part of its identity, and so of the journal's keys."""
    CALLS[solution_str] += 1
    await asyncio.sleep(0.05 * (int(solution_str) % 7))
    return float(solution_str)


def test_groups_come_back_with_the_very_records_that_were_submitted() -> None:
    async def main() -> None:
        async with KillableHost(lambda: agent_of(echo)) as host, host.client("a") as agent:
            sent = rollouts(20, size=4, token_ids=(1, 2, 3))
            groups = await agent.submit(sent).all()
            assert [one for group in groups for one in group.rollouts] == sent
            assert all(one is other for one, other in zip(sent, (r for g in groups for r in g.rollouts), strict=True))
            assert [reward.value for group in groups for reward in group.rewards] == [float(i) for i in range(20)]

    clock.run(main())


def test_what_is_submitted_together_goes_in_one_message_and_so_do_the_verdicts() -> None:
    async def main() -> None:
        async with KillableHost(lambda: agent_of(echo, max_concurrency=500)) as host, host.client("a") as agent:
            async with asyncio.TaskGroup() as tasks:
                for one in rollouts(500):
                    tasks.create_task(agent.score(one))
            assert host.num_posts <= 2
            assert host.num_takes <= 5

    clock.run(main())


def test_two_runs_may_use_the_same_names_for_their_groups() -> None:
    async def main() -> None:
        async with (
            KillableHost(lambda: agent_of(echo)) as host,
            host.client("a") as one,
            host.client("b") as other,
        ):
            mine, theirs = await asyncio.gather(one.submit(rollouts(4)).all(), other.submit(rollouts(4)).all())
            assert len(mine) == len(theirs) == 4

    clock.run(main())


def test_a_sample_returns_before_its_group_is_whole_unless_its_verdict_depends_on_the_group() -> None:
    class Centred:
        async def compute_score(self, solution_str: str) -> float:
            return float(solution_str)

        def post_process_scores(self, scores: list[float]) -> list[float]:
            return [score - sum(scores) / len(scores) for score in scores]

    async def main() -> None:
        first, second = rollouts(2, size=2)
        async with KillableHost(lambda: agent_of(echo)) as host, host.client("a") as worker:
            assert not worker.needs_groups
            assert (await worker.score(first)).value == 0.0
        make = lambda: agent_of(Centred())  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as worker, host.client("a") as other:
            assert worker.needs_groups
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await worker.score(first)
            rewards = await asyncio.gather(worker.score(first), other.score(second))
            assert [reward.value for reward in rewards] == [-0.5, 0.5]

    clock.run(main())


def test_the_sum_of_two_runs_keeps_the_rate_and_each_gets_half_until_one_ends() -> None:
    started: list[tuple[float, str]] = []

    async def judge(extra_info: dict[str, Any]) -> float:
        started.append((asyncio.get_running_loop().time(), extra_info["who"]))
        await asyncio.sleep(0.3)
        return 1.0

    async def main() -> float:
        make = lambda: agent_of(judge, rpm=600, max_concurrency=256)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one:
            async with host.client("b") as other:
                one.submit(rollouts(2000, extra_info={"who": "a"}))
                other.submit(rollouts(2000, extra_info={"who": "b"}))
                await asyncio.sleep(60)
            ended_s = asyncio.get_running_loop().time()
            await asyncio.sleep(20)
        return ended_s

    ended_s = clock.run(main())
    for begin_s in range(0, 80, 10):
        window = [who for at_s, who in started if begin_s <= at_s < begin_s + 10]
        assert len(window) <= 102  # ten a second
        if 5 <= begin_s < ended_s - 10:
            assert len(window) >= 95
            assert 0.45 <= Counter(window)["a"] / len(window) <= 0.55
    after = [who for at_s, who in started if ended_s + 5 <= at_s < ended_s + 15]
    assert len(after) >= 95
    assert set(after) == {"a"}


@pytest.mark.parametrize("latency_b_s", [0.1, 4.0])
def test_slots_are_shared_evenly_also_when_the_calls_of_one_run_take_longer(latency_b_s: float) -> None:
    async def judge(extra_info: dict[str, Any]) -> float:
        await asyncio.sleep(extra_info["latency_s"])
        return 1.0

    async def main() -> None:
        make = lambda: agent_of(judge, max_concurrency=40, rpm=None)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one, host.client("b", share=3.0) as other:
            one.submit(rollouts(2000, extra_info={"latency_s": 0.4}))
            other.submit(rollouts(3000, extra_info={"latency_s": latency_b_s}))
            await asyncio.sleep(6)
            (account,) = (await one.host_statistics()).agent.accounts
            in_flight = {lane.run: lane.in_flight for lane in account.runs}
            assert abs(in_flight["a"] - 10) <= 1
            assert abs(in_flight["b"] - 30) <= 1

    clock.run(main())


def test_runs_that_are_more_than_the_slots_take_turns_at_them() -> None:
    async def main() -> None:
        async with (
            KillableHost(lambda: agent_of(echo, max_concurrency=1)) as host,
            contextlib.AsyncExitStack() as stack,
        ):
            clients = [await stack.enter_async_context(host.client(run)) for run in "abc"]
            for client in clients:
                client.submit(rollouts(1000))
            await asyncio.sleep(30)
            assert all(90 <= client.statistics().verdicts.scored <= 110 for client in clients)

    clock.run(main())


@settings(max_examples=40)  # each is a host with its journal on disk, several times
@given(
    kills=st.lists(st.floats(0.0, 3.0), max_size=4),
    group_size=st.integers(1, 4),
    delay_s=st.sampled_from([0.0, 0.001, 0.2]),
)
def test_no_verdict_is_lost_or_delivered_twice_whenever_the_host_dies(
    tmp_path_factory: pytest.TempPathFactory, kills: list[float], group_size: int, delay_s: float
) -> None:
    journal = tmp_path_factory.mktemp("lives") / "run.db"
    CALLS.clear()

    async def main() -> None:
        make = lambda: agent_of(counted, max_concurrency=6, journal=journal)  # noqa: E731
        async with KillableHost(make, delay_s=delay_s) as host, host.client("a") as agent:
            sent = rollouts(24 * group_size, size=group_size)
            ticket = agent.submit(sent)
            for wait_s in kills:
                await asyncio.sleep(wait_s)
                await host.kill()
                await asyncio.sleep(0.5)
                await host.start()
            lone = await agent.score(rf.Rollout(group_id="lone", response="1000"))
            groups = await ticket.all()
            assert lone.value == 1000.0
            assert [one for group in groups for one in group.rollouts] == sent
            assert all(
                reward.value == float(rollout.response)
                for group in groups
                for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
            )
            statistics = agent.statistics()
            assert statistics.verdicts.scored == len(sent) + 1
            assert statistics.out == 0
        # What was in flight at a death is asked again, and nothing that was paid for is.
        assert sum(CALLS.values()) - len(CALLS) <= 6 * len(kills)

    clock.run(main())


@given(
    seed=st.integers(0, 2**32),
    fault_share=st.sampled_from([0.05, 0.3, 0.6]),
    group_size=st.integers(1, 4),
    num_clients=st.integers(1, 3),
)
def test_what_is_lost_or_comes_twice_on_the_line_costs_no_verdict_and_no_second_call(
    seed: int, fault_share: float, group_size: int, num_clients: int
) -> None:
    CALLS.clear()
    chance = random.Random(seed)

    async def use(line: UnreliableHost, number: int) -> None:
        async with line.client("a") as agent:
            for step in range(3):
                sent = rollouts(8 * group_size, size=group_size, step=step, name=f"{number}-")
                groups = await agent.submit(sent).all()
                assert [one for group in groups for one in group.rollouts] == sent
                values = [reward.value for group in groups for reward in group.rewards]
                assert values == [float(one.response) for one in sent]
                await asyncio.sleep(chance.random())
            assert agent.statistics().verdicts.scored == 3 * 8 * group_size

    async def main() -> None:
        make = lambda: agent_of(counted, max_concurrency=6)  # noqa: E731
        async with UnreliableHost(make, chance=chance, fault_share=fault_share) as line, asyncio.TaskGroup() as tasks:
            for number in range(num_clients):
                tasks.create_task(use(line, number))

    clock.run(main())
    assert sum(CALLS.values()) == num_clients * 3 * 8 * group_size


def test_a_verdict_that_a_poll_without_a_reader_took_is_given_to_the_reader() -> None:
    async def main() -> None:
        async with agent_of(echo) as agent, asyncio.TaskGroup() as tasks:
            host = Host(agent, incarnation="one")
            host.hello("c", "a", 1.0)
            (one,) = rollouts(1)
            host.post("c", [ScoreRequest([(1, pack_rollout(one, with_tokens=False))])])
            read = tasks.create_task(host.take("c", 0))
            await asyncio.sleep(0.01)
            host.verdict("a", one, rf.Reward(value=1.0))
            lost = await host.take("c", 0)  # comes a second time, in the moment in which there is something to take
            assert [serial for serial, *_ in lost.verdicts] == [1]
            heard = await read
            assert heard.verdicts == []
            again = await host.take("c", heard.number)
            assert again.verdicts == lost.verdicts

    clock.run(main())


def test_a_client_whose_poll_was_cut_off_is_gone_when_its_lease_is_over() -> None:
    async def main() -> None:
        async with agent_of(echo) as agent, asyncio.TaskGroup() as tasks:
            host = Host(agent, incarnation="one")
            host.hello("c", "a", 1.0)
            poll = tasks.create_task(host.take("c", 0))
            await asyncio.sleep(1.0)
            poll.cancel()
            await asyncio.sleep(LEASE_S + 1.0)
            assert host.statistics().clients == ()

    clock.run(main())


def test_what_a_client_gave_up_while_the_line_was_down_is_stopped_when_it_is_back() -> None:
    async def judge(solution_str: str) -> float:
        await asyncio.sleep(1000)
        return 1.0

    async def main() -> None:
        async with KillableHost(lambda: agent_of(judge, timeout_s=None)) as host, host.client("a") as agent:
            ticket = agent.submit(rollouts(8))
            kept = agent.submit(rollouts(2, name="kept"))
            await asyncio.sleep(1.0)
            with host.cut_off():
                await asyncio.sleep(1.0)
                ticket.cancel()
                await asyncio.sleep(1.0)
            await asyncio.sleep(5.0)
            assert agent.statistics().reconnects == 1
            assert (await agent.host_statistics()).agent.in_flight == 2
            kept.cancel()

    clock.run(main())


def test_workers_that_share_a_group_get_their_verdicts_also_if_the_host_dies_when_one_of_them_has_it(
    tmp_path: Path,
) -> None:
    class Pairs:
        async def score_group(self, rollouts: list[rf.Rollout]) -> list[float]:
            await asyncio.sleep(1.0)
            return [float(rollout.index) for rollout in rollouts]

    async def main() -> None:
        make = lambda: agent_of(Pairs(), journal=tmp_path / "run.db")  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one, host.client("a") as other:
            first, second = rollouts(2, size=2)
            host.deaf.add(other.id)
            async with asyncio.TaskGroup() as tasks:
                theirs = tasks.create_task(other.score(second))
                assert (await one.score(first)).value == 0.0
                await host.kill()
                await host.start()
                assert (await theirs).value == 1.0

    clock.run(main())


def test_what_a_client_that_died_had_asked_for_is_cancelled_and_its_share_is_free() -> None:
    async def judge(solution_str: str) -> float:
        await asyncio.sleep(1000)
        return 1.0

    async def main() -> None:
        make = lambda: agent_of(judge, max_concurrency=4, timeout_s=None)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one, host.client("b") as other:
            other.submit(rollouts(8))
            one.submit(rollouts(8))
            host.deaf.add(other.id)  # and asks for nothing, as if its process was gone
            await asyncio.sleep(25)
            (account,) = (await one.host_statistics()).agent.accounts
            assert {lane.run: lane.in_flight for lane in account.runs if lane.in_flight} == {"a": 4}
            assert [seen.run for seen in (await one.host_statistics()).clients] == ["a"]

    clock.run(main())


def test_cancelling_the_caller_of_score_stops_its_call_and_a_cancelled_ticket_ends_at_once() -> None:
    ended: list[str] = []

    async def judge(solution_str: str) -> float:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(solution_str)
        return 1.0

    async def main() -> None:
        async with KillableHost(lambda: agent_of(judge, timeout_s=None)) as host, host.client("a") as agent:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await agent.score(rf.Rollout(group_id="x", response="alone"))
            ticket = agent.submit(rollouts(3))
            await asyncio.sleep(1)
            ticket.cancel()
            groups = await ticket.all()
            assert [group.rewards[0].kind for group in groups] == ["cancelled"] * 3
            await asyncio.sleep(1)
            assert sorted(ended) == ["0", "1", "2", "alone"]

    clock.run(main())


def test_a_budget_that_is_spent_halts_every_client_with_what_it_could_not_finish() -> None:
    async def main() -> None:
        make = lambda: agent_of(echo, max_cost_usd=1.0, call_cost_usd=0.1, max_concurrency=2)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one, host.client("b") as other:
            with pytest.raises(BudgetExhausted, match="max_cost_usd") as halted:
                await one.submit(rollouts(30)).all()
            kinds = Counter(group.rewards[0].kind for group in halted.value.groups)
            assert kinds[None] == 10
            assert kinds["budget"] == 20
            await asyncio.sleep(1)
            with pytest.raises(BudgetExhausted):
                await other.score(rf.Rollout(group_id="late", response="1"))

    clock.run(main())


def test_what_is_on_its_way_when_the_agent_halts_fails_for_the_same_reason_and_is_counted() -> None:
    async def main() -> None:
        make = lambda: agent_of(echo, max_cost_usd=1.0, call_cost_usd=0.1, max_concurrency=2)  # noqa: E731
        async with KillableHost(make, delay_s=1.0) as host, host.client("a") as agent:
            agent.submit(rollouts(30))
            late: rf.Ticket | None = None
            while agent.is_open:
                late = agent.submit(rollouts(3, name=f"late-{asyncio.get_running_loop().time():g}-"))
                await asyncio.sleep(0.3)
            assert late is not None
            with pytest.raises(BudgetExhausted) as halted:
                await late.all()
            assert {group.rewards[0].kind for group in halted.value.groups} == {"budget"}
            statistics = agent.statistics()
            assert statistics.verdicts.submitted == statistics.verdicts.scored + sum(
                statistics.verdicts.failed.values()
            )

    clock.run(main())


def test_a_second_rollout_at_the_same_place_is_refused_and_the_same_one_is_judged_once() -> None:
    calls: list[str] = []

    async def judge(solution_str: str) -> float:
        calls.append(solution_str)
        await asyncio.sleep(1)
        return 1.0

    async def main() -> None:
        async with (
            KillableHost(lambda: agent_of(judge)) as host,
            host.client("a") as one,
            host.client("a") as other,
        ):
            same = rf.Rollout(group_id="x", response="same")
            first, second, third = await asyncio.gather(
                one.score(same), other.score(same), other.score(rf.Rollout(group_id="x", response="another"))
            )
            assert (first.value, second.value) == (1.0, 1.0)
            assert third.kind == "user_error"
            assert "one rollout at a place" in (third.error or "")
            assert calls == ["same"]

    clock.run(main())


@pytest.mark.parametrize("odd", [numpy.arange(3), {"ids": numpy.arange(3)}, math.nan], ids=str)
def test_two_clients_may_ask_about_one_rollout_whatever_its_extra_info_holds(odd: object) -> None:
    async def main() -> None:
        async with (
            KillableHost(lambda: agent_of(echo)) as host,
            host.client("a") as one,
            host.client("a") as other,
        ):
            sample = rf.Rollout(group_id="q", response="7", extra_info={"odd": odd})
            rewards = await asyncio.gather(one.score(sample), other.score(sample))
            assert [reward.value for reward in rewards] == [7.0, 7.0]

    clock.run(main())


def test_clients_of_one_run_must_have_one_share() -> None:
    async def main() -> None:
        async with KillableHost(lambda: agent_of(echo)) as host, host.client("a"):
            with pytest.raises(InvalidInput, match="one share"):
                async with host.client("a", share=2.0):
                    pass

    clock.run(main())


@pytest.mark.parametrize("share", [0.0, 0.09, 10.5, 1e9, math.inf, math.nan])
def test_a_share_that_would_starve_other_runs_is_refused(share: float) -> None:
    async def main() -> None:
        async with KillableHost(lambda: agent_of(echo)) as host:
            with pytest.raises(InvalidInput, match=r"share must be from 0\.1 to 10, got"):
                async with host.client("a", share=share):
                    pass

    clock.run(main())


def test_the_smallest_share_gets_calls_beside_the_largest() -> None:
    async def main() -> Counter[str]:
        started: Counter[str] = Counter()

        async def judge(data_source: str) -> float:
            started[data_source] += 1
            return 1.0

        make = lambda: agent_of(judge, rpm=6000, max_concurrency=4)  # noqa: E731
        async with KillableHost(make) as host, host.client("a", share=10) as one, host.client("b", share=0.1) as other:
            one.submit(rollouts(9000, data_source="a"))
            other.submit(rollouts(9000, data_source="b"))
            await asyncio.sleep(60)
            return started

    started = clock.run(main())
    assert 30 <= started["b"] <= 90 < 4000 < started["a"]


def test_an_id_from_the_statistics_lets_nobody_speak_for_that_client() -> None:
    async def main() -> None:
        async with KillableHost(lambda: agent_of(echo)) as host, host.client("a") as agent:
            ticket = agent.submit(rollouts(3))
            await asyncio.sleep(0.05)
            told = await agent.host_statistics()
            (client,) = told.clients
            assert (client.client, client.out) == (agent.id, 3)
            for forged in (client.client, "", agent.id.upper()):
                for message in (Post(forged, [Cancel([1, 2, 3])]), Take(forged, 0), Bye(forged, 0)):
                    with pytest.raises(UnknownClient):
                        await host.ask(message)
            host.current.hello(client.client, "a", 1.0)  # becomes a client of its own
            assert len(host.current.statistics().clients) == 2
            assert [reward.value for group in await ticket.all() for reward in group.rewards] == [0.0, 1.0, 2.0]
            secret = agent._connection._secret
            for shown in (repr(told), repr(agent), repr(vars(agent)), repr(agent._connection), agent.id):
                assert secret not in shown

    clock.run(main())


def test_a_client_is_the_same_client_after_a_restart_of_the_host() -> None:
    async def main() -> None:
        async with KillableHost(lambda: agent_of(echo)) as host, host.client("a") as agent:
            ticket = agent.submit(rollouts(3))
            await host.kill()
            await host.start()
            assert len(await ticket.all()) == 3
            assert [one.client for one in (await agent.host_statistics()).clients] == [agent.id]

    clock.run(main())


def test_what_cannot_travel_is_refused_by_name_where_it_is_submitted() -> None:
    async def main() -> None:
        async with KillableHost(lambda: agent_of(echo)) as host, host.client("a") as agent:
            with pytest.raises(InvalidInput, match=r"extra_info\['lock'\] of index 0 in group 'x'"):
                agent.submit(rf.Rollout(group_id="x", response="1", extra_info={"lock": threading.Lock()}))

    clock.run(main())


def test_extras_that_cannot_travel_become_a_text_that_says_so() -> None:
    async def judge(solution_str: str) -> dict[str, object]:
        return {"score": 1.0, "lock": threading.Lock(), "note": "kept"}

    async def main() -> None:
        async with KillableHost(lambda: agent_of(judge)) as host, host.client("a") as agent:
            reward = await agent.score(rf.Rollout(group_id="x", response="1"))
            assert reward.extras["note"] == "kept"
            assert "cannot travel" in reward.extras["lock"]

    clock.run(main())


def test_a_service_that_refuses_above_its_rate_sees_the_sum_of_all_runs_at_it() -> None:
    async def main() -> SimulatedService:
        service = SimulatedService(rpm=600, burst=1, latency_s=0.5)

        async def judge(solution_str: str) -> float:
            await service.call()
            return 1.0

        make = lambda: agent_of(judge, rpm=600, max_concurrency=64)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one, host.client("b") as other:
            for agent in (one, other):
                agent.submit(rollouts(1000))
            await asyncio.sleep(60)
        return service

    service = clock.run(main())
    assert service.rejected_share(10.0, 60.0) <= 0.02
    assert service.accepted_share(10.0, 60.0) >= 0.9


def test_a_ticket_queues_at_the_host_with_the_step_and_under_the_source_it_was_opened_for(tmp_path: Path) -> None:
    asked: list[str] = []

    async def slow(response: str) -> float:
        asked.append(response)
        await asyncio.sleep(1)
        return 1.0

    async def main() -> None:
        async with (
            KillableHost(lambda: agent_of(slow, max_concurrency=1, run_dir=tmp_path / "run")) as host,
            host.client("a") as agent,
        ):
            validation, training = agent.open(due_step=2, source="validation"), agent.open()
            validation.submit(rf.Rollout(group_id="validation-0", response="first", step=0))
            validation.submit(rf.Rollout(group_id="validation-1", response="due with step 2", step=0))
            for step in (1, 3):
                training.submit(rf.Rollout(group_id=str(step), response=f"step {step}", step=step))
            for ticket in (validation, training):
                ticket.seal()
                await ticket.all()

    clock.run(main())
    assert sorted(asked[:2]) == ["first", "step 1"]
    assert asked[2:] == ["due with step 2", "step 3"]
    steps = read_steps(tmp_path / "run")
    sources = {step: sorted(by_source) for step, by_source in steps.items()}
    assert sources == {0: ["validation"], 1: ["reward"], 3: ["reward"]}


class Pairs:
    async def score_group(self, rollouts: list[rf.Rollout]) -> list[float]:
        await asyncio.sleep(1.0)
        return [float(rollout.index) for rollout in rollouts]


class Centred:
    async def compute_score(self, solution_str: str) -> float:
        return float(solution_str)

    def post_process_scores(self, scores: list[float]) -> list[float]:
        return [score - sum(scores) / len(scores) for score in scores]


@pytest.mark.parametrize("reward", [Pairs, Centred])
def test_a_group_whose_rest_a_dead_worker_held_fails_for_the_others_in_bounded_time(reward: Any) -> None:
    async def main() -> None:
        make = lambda: agent_of(reward(), incomplete_after_s=60)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one, host.client("a") as other:
            first, second, third = rollouts(3, size=3)
            began_s = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as tasks:
                mine = tasks.create_task(one.score(first))
                theirs = tasks.create_task(other.score(second))
                await asyncio.sleep(30)
                host.deaf.add(other.id)  # and is not heard of again
                theirs.cancel()
                verdict = await mine
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(60, abs=1)
            assert verdict.value is None
            assert verdict.kind == "cancelled"
            assert "lacks index 2: nothing came for incomplete_after_s=60; 1 of the run's processes" in verdict.error
            assert one.statistics().out == 0
            assert (await one.host_statistics()).agent.verdicts.pending_groups == 0
            late = await asyncio.gather(*(one.score(rollout) for rollout in (first, second, third)))
            assert [reward.status for reward in late] == ["scored"] * 3  # whoever asks anew starts anew

    clock.run(main())


def test_a_group_whose_rest_only_takes_its_time_is_judged_with_what_a_dead_worker_had_sent() -> None:
    async def main() -> None:
        make = lambda: agent_of(Pairs(), incomplete_after_s=60)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one, host.client("a") as other:
            first, second, third = rollouts(3, size=3)
            async with asyncio.TaskGroup() as tasks:
                mine = tasks.create_task(one.score(first))
                theirs = tasks.create_task(other.score(second))
                await asyncio.sleep(1)
                host.deaf.add(other.id)
                await asyncio.sleep(50)
                last = tasks.create_task(one.score(third))
                assert [(await verdict).value for verdict in (mine, last)] == [0.0, 2.0]
                theirs.cancel()

    clock.run(main())


@pytest.mark.parametrize("died_with", ["its part", "the host"])
def test_after_the_host_has_died_a_group_that_lacks_a_dead_workers_part_fails_for_the_others(died_with: str) -> None:
    async def main() -> None:
        make = lambda: agent_of(Pairs(), incomplete_after_s=60)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as one:
            first, second = rollouts(2, size=2)
            async with asyncio.TaskGroup() as tasks:
                mine = tasks.create_task(one.score(first))
                if died_with == "the host":
                    async with host.client("a") as other:
                        theirs = tasks.create_task(other.score(second))
                        await asyncio.sleep(0.1)
                        await host.kill()
                        theirs.cancel()
                    await host.start()
                verdict = await mine
            assert (verdict.kind, verdict.value) == ("cancelled", None)
            assert "lacks index 1" in (verdict.error or "")

    clock.run(main())


class Logged:
    """A reward whose `log` keeps the groups of each batch, outside of itself: the host may be made again."""

    batches: ClassVar[list[list[str]]] = []

    async def compute_score(self, solution_str: str) -> float:
        await asyncio.sleep(1.0)
        return float(solution_str)

    def log(self, timestamps: Any, queries: Any, results: Any, latencies: Any, group_uids: list[str]) -> None:
        self.batches.append(sorted(group_uids))


def test_single_requests_of_a_step_are_logged_as_one_batch_also_from_several_workers() -> None:
    async def main() -> None:
        Logged.batches.clear()
        async with (
            KillableHost(lambda: agent_of(Logged())) as host,
            host.client("run") as one,
            host.client("run") as other,
        ):
            for step in (1, 2, 3):
                async with asyncio.TaskGroup() as tasks:
                    for number, rollout in enumerate(rollouts(4, step=step, name=f"s{step}-")):
                        tasks.create_task((one, other)[number % 2].score(rollout))
            assert Logged.batches == [[f"s1-{i}" for i in range(4)]]  # two steps may be under way at the same time

    clock.run(main())
    assert sorted(Logged.batches) == [[f"s{step}-{i}" for i in range(4)] for step in (1, 2, 3)]


def test_single_requests_of_two_steps_that_travel_together_are_logged_with_their_own_steps() -> None:
    async def main() -> None:
        Logged.batches.clear()
        async with KillableHost(lambda: agent_of(Logged())) as host, host.client("run") as client:
            mixed = [rollout for step in (1, 2) for rollout in rollouts(2, step=step, name=f"s{step}-")]
            async with asyncio.TaskGroup() as tasks:
                for rollout in [mixed[2], mixed[0], mixed[3], mixed[1]]:
                    tasks.create_task(client.score(rollout))

    clock.run(main())
    assert sorted(Logged.batches) == [["s1-0", "s1-1"], ["s2-0", "s2-1"]]


def test_closing_ends_all_calls_at_once_however_many_wait() -> None:
    """Going through the whole queue for each that waits would take minutes for a hundred thousand."""

    async def main() -> None:
        ended: list[rf.Reward] = []
        looks = cProfile.Profile()
        async with agent_of(echo, max_concurrency=1) as agent:
            host = Host(agent, incarnation="first")
            host.ask("run", [(one, ended.append) for one in rollouts(50)])
            await asyncio.sleep(0.01)
            looks.runcall(host.dismiss)
        assert [reward.kind for reward in ended] == ["cancelled"] * 50
        assert "prune" not in pstats.Stats(looks).get_stats_profile().func_profiles

    clock.run(main())


def test_requests_that_are_cancelled_one_by_one_and_told_together_cost_one_look_at_the_queue() -> None:
    async def main() -> None:
        looks = cProfile.Profile()
        async with agent_of(echo, max_concurrency=1) as agent:
            host = Host(agent, incarnation="first")
            host.hello("secret", "run", 1.0)
            numbered = [(i, pack_rollout(one, with_tokens=False)) for i, one in enumerate(rollouts(50), 1)]
            host.post("secret", [ScoreRequest(numbered)])
            await asyncio.sleep(0.01)
            looks.runcall(host.post, "secret", [Cancel([serial]) for serial, _ in numbered])
            assert agent.statistics().waiting == 0
            host.dismiss()
        assert pstats.Stats(looks).get_stats_profile().func_profiles["prune"].ncalls == "1"

    clock.run(main())
