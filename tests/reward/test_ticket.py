"""A ticket gives every group out exactly once, to whoever asks, from whatever thread or loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_at_work import now, sleeper, with_agent
from rollouts import group

import rewardflow as rf
from rewardflow import clock


def singles(*delays_s: float) -> list[rf.Rollout]:
    """One group of one rollout for each delay, named after it."""
    return [rollout for delay_s in delays_s for rollout in group(f"{delay_s:g}", str(delay_s))]


def names(groups: list[rf.ScoredGroup]) -> list[str]:
    return [one.group_id for one in groups]


@contextlib.contextmanager
def agent_in_a_thread(reward: Any, **options: Any) -> Iterator[rf.RewardAgent]:
    """An agent that is open on the loop of another thread."""
    agent = rf.RewardAgent(reward, **options)
    is_open = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def live() -> None:
        is_over = asyncio.Event()
        async with agent:
            loops.append((asyncio.get_running_loop(), is_over))
            is_open.set()
            await is_over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    assert is_open.wait(10)
    try:
        yield agent
    finally:
        loop, is_over = loops[0]
        loop.call_soon_threadsafe(is_over.set)
        thread.join(20)
        assert not thread.is_alive()


# -- the order of groups -----------------------------------------------------------------------------------------------


def test_iteration_gives_groups_in_the_order_of_completion() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(5, 1, 3))
        assert [(one.group_id, now()) async for one in ticket] == [("1", 1.0), ("3", 3.0), ("5", 5.0)]

    with_agent(use)


def test_all_gives_groups_in_the_order_of_submission() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        assert names(await agent.submit(singles(5, 1, 3)).all()) == ["5", "1", "3"]

    with_agent(use)


def test_all_gives_what_was_not_taken_yet_and_then_nothing() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(5, 1, 3, 2))
        assert names(await ticket.take(2)) == ["1", "2"]
        assert names(await ticket.all()) == ["5", "3"]
        assert await ticket.all() == []
        assert await ticket.take(3) == []
        assert [one async for one in ticket] == []

    with_agent(use)


def test_take_returns_as_soon_as_its_groups_are_complete() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(9, 1, 4, 2))
        assert (names(await ticket.take(2)), now()) == (["1", "2"], 2.0)
        assert (names(await ticket.take(1)), now()) == (["4"], 4.0)
        assert (names(await ticket.take(99)), now()) == (["9"], 9.0)

    with_agent(use)


def test_take_of_nothing_waits_for_nothing_and_a_negative_count_is_refused() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(9))
        assert (await ticket.take(0), now()) == ([], 0.0)
        with pytest.raises(rf.InvalidInput, match="-1"):
            await ticket.take(-1)
        assert names(await ticket.all()) == ["9"]

    with_agent(use)


def test_a_ticket_counts_what_is_ready_and_what_is_pending() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(1, 2, 9))
        assert (ticket.num_ready, ticket.num_pending) == (0, 3)
        await asyncio.sleep(5)
        assert (ticket.num_ready, ticket.num_pending) == (2, 1)
        await ticket.take(1)
        assert (ticket.num_ready, ticket.num_pending) == (1, 1)
        await ticket.all()
        assert (ticket.num_ready, ticket.num_pending) == (0, 0)

    with_agent(use)


# -- exactly once ------------------------------------------------------------------------------------------------------


def test_two_iterating_consumers_share_the_groups_and_none_is_given_twice() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(*range(1, 41)))

        async def consume() -> list[str]:
            return [one.group_id async for one in ticket]

        async with asyncio.TaskGroup() as tasks:
            consumers = [tasks.create_task(consume()) for _ in range(3)]
        given = [name for consumer in consumers for name in consumer.result()]
        assert sorted(given, key=int) == [str(i) for i in range(1, 41)]

    with_agent(use)


def test_two_takers_each_get_as_many_groups_as_they_asked_for() -> None:
    """`take` gives fewer only if the ticket ends first, also when somebody else takes from the same ticket."""

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(1, 2, 3, 4, 5, 6))
        async with asyncio.TaskGroup() as tasks:
            takers = [tasks.create_task(ticket.take(3)) for _ in range(2)]
        assert [len(taker.result()) for taker in takers] == [3, 3]
        assert sorted(names(takers[0].result() + takers[1].result())) == ["1", "2", "3", "4", "5", "6"]

    with_agent(use)


def test_a_taker_beside_an_iterating_consumer_loses_nothing() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(*range(1, 21)))

        async def iterate() -> list[str]:
            return [one.group_id async for one in ticket]

        async def take() -> list[str]:
            taken: list[str] = []
            while some := await ticket.take(4):
                taken += names(some)
            return taken

        async with asyncio.TaskGroup() as tasks:
            consumers = [tasks.create_task(iterate()), tasks.create_task(take())]
        given = [name for consumer in consumers for name in consumer.result()]
        assert sorted(given, key=int) == [str(i) for i in range(1, 21)]

    with_agent(use)


def test_giving_up_on_a_wait_loses_nothing() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(1, 2, 30, 40))
        for waiting in (ticket.all, lambda: ticket.take(3)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await waiting()
        assert names(await ticket.take(2)) == ["1", "2"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await anext(ticket)
        assert names(await ticket.all()) == ["30", "40"]

    with_agent(use)


def test_breaking_out_of_iteration_and_coming_back_gives_the_rest() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(3, 1, 2))
        async for one in ticket:
            assert one.group_id == "1"
            break
        assert [one.group_id async for one in ticket] == ["2", "3"]

    with_agent(use)


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_cancel_fails_what_is_out_at_once_and_keeps_what_was_scored() -> None:
    ended: list[tuple[str, float]] = []

    async def reward(solution_str: str) -> float:
        try:
            await asyncio.sleep(float(solution_str))
        finally:
            ended.append((solution_str, now()))
        return float(solution_str)

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit([*group("a", "1", "50"), *group("b", "1"), *group("c", "60")])
        await asyncio.sleep(5)
        ticket.cancel()
        groups = await ticket.all()
        assert now() == 5.0
        rewards = {(one.group_id, i): reward for one in groups for i, reward in enumerate(one.rewards)}
        assert {place: reward.value for place, reward in rewards.items()} == {
            ("a", 0): 1.0,
            ("a", 1): None,
            ("b", 0): 1.0,
            ("c", 0): None,
        }
        assert rewards["a", 1].kind == rewards["c", 0].kind == "cancelled"
        await asyncio.sleep(1)
        assert agent.statistics().in_flight == 0

    with_agent(use, reward)
    assert ended == [("1", 1.0), ("1", 1.0), ("50", 5.0), ("60", 5.0)]


def test_cancel_of_some_groups_leaves_the_others_alone() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(10, 20, 30))
        await asyncio.sleep(1)
        ticket.cancel(["20", "no such group"])
        assert {one.group_id: one.rewards[0].value for one in await ticket.all()} == {
            "10": 10.0,
            "20": None,
            "30": 30.0,
        }

    with_agent(use)


def test_cancel_of_one_ticket_leaves_another_alone() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        first, second = agent.submit(group("a", "5")), agent.submit(group("b", "5"))
        await asyncio.sleep(1)
        first.cancel()
        assert (await first.all())[0].rewards[0].kind == "cancelled"
        assert (await second.all())[0].rewards[0].value == 5.0

    with_agent(use)


def test_cancel_of_what_waits_for_a_slot_never_calls_it() -> None:
    calls: list[str] = []

    async def reward(solution_str: str) -> float:
        calls.append(solution_str)
        await asyncio.sleep(10)
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit([*group("a", "a"), *group("b", "b"), *group("c", "c")])
        await asyncio.sleep(1)
        ticket.cancel(["b"])
        await ticket.all()
        assert calls == ["a", "c"]

    with_agent(use, reward, max_concurrency=1)


def test_cancel_during_the_pause_before_a_retry_ends_it() -> None:
    calls: list[float] = []

    async def reward(solution_str: str) -> float:
        calls.append(now())
        raise rf.ServiceError("down", retry_after_s=100)

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(group("a", "a"))
        await asyncio.sleep(5)
        ticket.cancel()
        (one,) = await ticket.all()
        assert one.rewards[0].kind == "cancelled"
        await asyncio.sleep(500)
        assert calls == [0.0]

    with_agent(use, reward)


def test_cancel_of_a_group_that_is_not_whole_gives_what_was_submitted() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit([group("a", "1", "2", "3")[0], group("a", "1", "2", "30")[2]])
        await asyncio.sleep(5)
        ticket.cancel()
        (one,) = await ticket.all()
        assert not one.is_complete
        assert [rollout.index for rollout in one.rollouts] == [0, 2]
        assert [reward.value for reward in one.rewards] == [1.0, None]

    with_agent(use)


@pytest.mark.parametrize("num_turns", range(5))
def test_cancel_right_after_submit_is_final_however_far_the_call_has_come(num_turns: int) -> None:
    started = Counter[str]()

    async def reward(solution_str: str) -> float:
        started[solution_str] += 1
        try:
            await asyncio.sleep(50)
        finally:
            started["ended"] += 1
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(group("a", "x"))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        ticket.cancel()
        (one,) = await ticket.all()
        assert one.rewards[0].kind == "cancelled"
        await asyncio.sleep(0.001)
        assert started["ended"] == started["x"]
        assert agent.statistics().in_flight == 0

    with_agent(use, reward)


def test_cancelling_twice_or_after_the_end_does_nothing() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(1))
        await asyncio.sleep(2)
        ticket.cancel()
        ticket.cancel()
        assert (await ticket.all())[0].rewards[0].value == 1.0
        ticket.cancel()
        assert agent.statistics().verdicts.delivered == 1

    with_agent(use)


# -- groups that are not complete --------------------------------------------------------------------------------------


def test_a_ticket_says_which_rollouts_are_missing() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        first, second, third = group("a", "1", "2", "3")
        ticket = agent.submit([second, *group("b", "1")])
        assert ticket.missing == {"a": (0, 2)}
        agent.submit(third)
        assert ticket.missing == {"a": (0,)}
        agent.submit(first)
        assert ticket.missing == {}
        assert names(await ticket.all()) == ["a", "b"]

    with_agent(use)


@pytest.mark.parametrize("how", ["all", "take", "iterate"])
def test_waiting_for_what_nobody_submits_ends_in_an_error_that_names_it(how: str) -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit([*group("whole", "1"), group("torn", "1", "2", "3")[1]])

        async def iterate() -> None:
            async for _ in ticket:
                pass

        waits: dict[str, Callable[[], Awaitable[Any]]] = {
            "all": ticket.all,
            "take": lambda: ticket.take(2),
            "iterate": iterate,
        }
        with pytest.raises(rf.IncompleteGroup) as caught:
            await waits[how]()
        assert "'torn'" in str(caught.value)
        assert "0, 2" in str(caught.value)
        assert "whole" not in str(caught.value)
        assert now() == pytest.approx(2 + 100, abs=2)

    with_agent(use, incomplete_after_s=100)


def test_after_the_error_about_missing_rollouts_everything_else_can_still_be_taken() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit([*group("whole", "1"), group("torn", "1", "2")[1]])
        with pytest.raises(rf.IncompleteGroup):
            await ticket.all()
        ticket.cancel(["torn"])
        groups = {one.group_id: one for one in await ticket.all()}
        assert groups["whole"].rewards[0].value == 1.0
        assert [reward.value for reward in groups["torn"].rewards] == [2.0]
        assert not groups["torn"].is_complete

    with_agent(use, incomplete_after_s=100)


def test_rollouts_that_come_just_before_patience_ends_are_waited_for() -> None:
    """What is awaited is then a verdict, not a rollout that nobody submits."""

    async def use(agent: rf.RewardAgent) -> None:
        first, second = group("a", "1", "50")
        ticket = agent.submit(first)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(ticket.all())
            await asyncio.sleep(90)
            agent.submit(second)
        assert [reward.value for reward in waiting.result()[0].rewards] == [1.0, 50.0]
        assert now() == 140.0

    with_agent(use, incomplete_after_s=100)


def test_rollouts_that_keep_coming_keep_the_ticket_waiting() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        rollouts = group("a", "1", "1", "1", "1")
        ticket = agent.submit(rollouts[0])
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(ticket.all())
            for rollout in rollouts[1:]:
                await asyncio.sleep(80)
                agent.submit(rollout)
        assert waiting.result()[0].is_complete

    with_agent(use, incomplete_after_s=100)


def test_a_sealed_open_ticket_says_at_once_what_is_missing_when_the_rest_is_scored() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        with agent.open() as ticket:
            ticket.submit(group("torn", "3", "1")[0])
        with pytest.raises(rf.IncompleteGroup, match=r"'torn'.*1"):
            await ticket.all()
        assert now() == 3.0

    with_agent(use)


# -- tickets that are open ---------------------------------------------------------------------------------------------


def test_an_open_ticket_waits_for_more_until_it_is_sealed() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.open()
        arrived: list[tuple[str, float]] = []

        async def consume() -> None:
            async for one in ticket:
                arrived.append((one.group_id, now()))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consume())
            for name in "abc":
                await asyncio.sleep(10_000)
                ticket.submit(group(name, "1"))
            await asyncio.sleep(10_000)
            ticket.seal()
        assert arrived == [("a", 10_001.0), ("b", 20_001.0), ("c", 30_001.0)]

    with_agent(use)


def test_an_open_ticket_that_is_sealed_empty_ends_at_once() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        with agent.open() as ticket:
            pass
        assert await ticket.all() == []
        assert now() == 0.0

    with_agent(use)


def test_a_sealed_ticket_takes_no_more() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        with agent.open() as ticket:
            ticket.submit(group("a", "1"))
        with pytest.raises(rf.InvalidInput, match="sealed"):
            ticket.submit(group("b", "1"))
        with pytest.raises(rf.InvalidInput, match="sealed"):
            agent.submit(group("c", "1")).submit(group("d", "1"))

    with_agent(use)


def test_a_block_that_raises_still_seals_its_ticket() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.open()
        with contextlib.suppress(KeyError), ticket:
            ticket.submit(group("a", "1"))
            raise KeyError
        assert names(await ticket.all()) == ["a"]

    with_agent(use)


# -- other threads and other loops -------------------------------------------------------------------------------------


def quick(solution_str: str) -> float:
    return float(solution_str)


def test_wait_blocks_a_thread_until_the_last_group_is_complete() -> None:
    with agent_in_a_thread(quick, max_concurrency=4) as agent:
        groups = agent.submit([*group("a", "1", "2"), *group("b", "3")]).wait(10)
    assert {one.group_id: [reward.value for reward in one.rewards] for one in groups} == {"a": [1.0, 2.0], "b": [3.0]}


def test_wait_that_runs_out_of_time_says_so_and_loses_nothing() -> None:
    go_on = threading.Event()

    def reward(solution_str: str) -> float:
        if solution_str == "slow":
            go_on.wait(20)
        return 1.0

    with agent_in_a_thread(reward, max_concurrency=4) as agent:
        ticket = agent.submit([*group("a", "fast"), *group("b", "slow")])
        with pytest.raises(TimeoutError, match="1"):
            ticket.wait(0.2)
        go_on.set()
        assert names(ticket.wait(10)) == ["a", "b"]


def test_wait_that_runs_out_of_time_just_as_the_last_group_arrives_loses_nothing() -> None:
    drawn = random.Random(3)
    with agent_in_a_thread(sleeper) as agent:
        for number in range(400):
            ticket = agent.submit(group(str(number), "0.002"))
            try:
                groups = ticket.wait(0.002 + drawn.uniform(-0.0003, 0.0012))
            except TimeoutError:
                groups = ticket.wait(10)
            assert names(groups) == [str(number)]


def test_wait_on_the_agents_own_loop_is_refused_instead_of_hanging() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(singles(1))
        with pytest.raises(rf.InvalidInput, match="all"):
            ticket.wait(1)
        assert names(await ticket.all()) == ["1"]

    with_agent(use)


def test_every_way_of_taking_works_from_a_foreign_loop() -> None:
    async def consume(agent: rf.RewardAgent) -> None:
        assert len(await agent.submit(group("a", "1")).all()) == 1
        ticket = agent.submit([*group("b", "1"), *group("c", "2"), *group("d", "3")])
        taken = names(await ticket.take(1))
        taken += [one.group_id async for one in ticket]
        assert sorted(taken) == ["b", "c", "d"]
        with agent.open() as opened:
            opened.submit(group("e", "1"))
        assert names(await opened.all()) == ["e"]

    with agent_in_a_thread(quick, max_concurrency=4) as agent:
        asyncio.run(consume(agent))


def test_cancel_and_seal_work_from_another_thread() -> None:
    go_on = threading.Event()

    def reward(solution_str: str) -> float:
        go_on.wait(20)
        return 1.0

    try:
        with agent_in_a_thread(reward, max_concurrency=2) as agent:
            ticket = agent.open()
            ticket.submit(group("a", "1"))
            ticket.cancel()
            ticket.seal()
            (one,) = ticket.wait(10)
            assert one.rewards[0].kind == "cancelled"
    finally:
        go_on.set()


def test_many_threads_and_loops_that_take_from_one_ticket_get_each_group_once() -> None:
    count = 600
    given: list[str] = []
    problems: list[BaseException] = []

    async def iterate(ticket: rf.Ticket) -> None:
        async for one in ticket:
            given.append(one.group_id)

    async def take(ticket: rf.Ticket) -> None:
        while some := await ticket.take(7):
            given.extend(names(some))

    def consume(way: Callable[[rf.Ticket], Any], ticket: rf.Ticket) -> None:
        try:
            asyncio.run(way(ticket))
        except BaseException as error:
            problems.append(error)

    with agent_in_a_thread(quick, max_concurrency=8) as agent:
        with agent.open() as ticket:
            ways = (iterate, take, iterate, take)
            threads = [threading.Thread(target=consume, args=(way, ticket)) for way in ways]
            for thread in threads:
                thread.start()
            for i in range(count):
                ticket.submit(group(str(i), "1"))
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert problems == []
    assert Counter(given) == Counter({str(i): 1 for i in range(count)})


def test_two_takers_in_foreign_loops_each_get_as_many_groups_as_they_asked_for() -> None:
    second_half = threading.Event()
    taken: list[list[str]] = []

    def reward(solution_str: str) -> float:
        if solution_str == "late":
            second_half.wait(20)
        return 1.0

    def consume(ticket: rf.Ticket) -> None:
        taken.append(names(asyncio.run(ticket.take(3))))
        second_half.set()

    with agent_in_a_thread(reward, max_concurrency=8) as agent:
        with agent.open() as ticket:
            threads = [threading.Thread(target=consume, args=(ticket,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            ticket.submit([rollout for name in "abc" for rollout in group(name, "early")])
            ticket.submit([rollout for name in "def" for rollout in group(name, "late")])
        for thread in threads:
            thread.join(20)
    assert [len(some) for some in taken] == [3, 3]
    assert sorted(taken[0] + taken[1]) == list("abcdef")


def test_waiting_in_a_foreign_loop_that_is_given_up_loses_nothing() -> None:
    go_on = threading.Event()

    def reward(solution_str: str) -> float:
        go_on.wait(20)
        return 1.0

    async def consume(ticket: rf.Ticket) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await ticket.all()
        go_on.set()
        assert names(await ticket.all()) == ["a", "b"]

    with agent_in_a_thread(reward, max_concurrency=2) as agent:
        asyncio.run(consume(agent.submit([*group("a", "1"), *group("b", "1")])))


# -- after the agent has closed ----------------------------------------------------------------------------------------


def test_groups_that_were_ready_before_the_agent_closed_can_still_be_taken() -> None:
    async def main() -> None:
        async with rf.RewardAgent(sleeper) as agent:
            ticket = agent.submit(singles(1, 2, 500))
            await asyncio.sleep(5)
        assert [(one.group_id, one.rewards[0].kind) async for one in ticket] == [
            ("1", None),
            ("2", None),
            ("500", "cancelled"),
        ]

    clock.run(main())


def test_whoever_waits_while_the_agent_closes_gets_the_verdicts_and_is_not_left_waiting() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks, rf.RewardAgent(sleeper) as agent:
            waiting = tasks.create_task(agent.submit(singles(1, 500)).all())
            opened = tasks.create_task(agent.open().all())
            await asyncio.sleep(5)
        assert [one.rewards[0].kind for one in waiting.result()] == [None, "cancelled"]
        assert opened.result() == []

    clock.run(main())


def test_a_ticket_whose_loop_has_ended_gives_its_groups_or_says_that_the_agent_is_closed() -> None:
    tickets: list[rf.Ticket] = []

    async def main() -> None:
        is_judged = asyncio.Event()
        async with rf.RewardAgent(sleeper) as agent:
            tickets.append(agent.submit(singles(0)))
            tickets[0].watch(lambda *_: is_judged.set())
            await is_judged.wait()

    asyncio.run(main())
    try:
        groups = tickets[0].wait(5)
    except rf.AgentClosed:
        pass
    else:
        assert names(groups) == ["0"]
    with pytest.raises(rf.AgentClosed):
        tickets[0].cancel()


def test_a_ticket_nobody_looks_at_costs_nothing_and_its_groups_are_still_counted() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        for i in range(50):
            agent.submit(group(str(i), "1"))
        await asyncio.sleep(10)
        assert agent.statistics().verdicts.delivered == 50
        assert agent.statistics().verdicts.pending_groups == 0

    with_agent(use)


def test_an_incomplete_group_of_a_reward_that_judges_groups_is_named_too() -> None:
    class Judge:
        async def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[float]:
            return [1.0] * len(rollouts)

    async def main() -> None:
        async with rf.RewardAgent(Judge, incomplete_after_s=5) as agent:
            ticket = agent.submit(group("g", "1", "2")[:1])
            with pytest.raises(rf.IncompleteGroup, match="'g' lacks index 1"):
                await ticket.all()

    clock.run(main())


def test_a_cancelled_group_takes_no_more_rollouts(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = group("g", "0", "0")
        async with rf.RewardAgent(sleeper, journal=tmp_path / "j.db", reuse="off") as agent:
            ticket = agent.submit(first)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ticket.cancel()
            with contextlib.suppress(rf.InvalidInput):
                agent.submit(second)
            async with asyncio.timeout(100):
                (one,) = await ticket.all()
            assert [rollout.index for rollout in one.rollouts] == [0]

    clock.run(main())


def test_a_ticket_that_was_complete_before_a_halt_gives_its_groups() -> None:
    async def judge(solution_str: str) -> float:
        rf.report_usage(cost_usd=1.0)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(judge, max_cost_usd=2.0, call_cost_usd=1.0) as agent:
            done = agent.submit([*group("a", "x"), *group("b", "x")])
            await asyncio.sleep(1)
            with pytest.raises(rf.BudgetExhausted):
                await agent.submit(group("c", "x")).all()
            assert len(await done.all()) == 2

    clock.run(main())
