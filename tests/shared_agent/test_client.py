"""What a client writes down: its run as a run of its own agent would have been told, on its own clock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from killable_host import KillableHost, UnreliableHost

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.observe.events import (
    AccountLoad,
    AgentEnded,
    AgentOpened,
    CallEnded,
    EventList,
    GroupDelivered,
    LimitChanged,
    VerdictReached,
)
from rewardflow.observe.run_directory import RunDirectory, read_events, read_steps
from rewardflow.reward.agent import RewardAgent
from rewardflow.shared_agent.deliveries import Inbox
from rewardflow.shared_agent.messages import Delivery, pack_event, unpack_event


def rollouts(count: int, *, size: int = 2, step: int = 0) -> list[rf.Rollout]:
    return [
        rf.Rollout(group_id=f"q{i // size}", index=i % size, group_size=size, response=str(i), step=step)
        for i in range(count)
    ]


class Moody:
    """Every third answer comes at the second attempt, every seventh never, and each costs a cent."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def compute_score(self, solution_str: str) -> float:
        number = int(solution_str)
        self.asked[solution_str] += 1
        await asyncio.sleep(0.5 + 0.01 * number)
        rf.report_usage(cost_usd=0.01, tokens=3)
        if number % 7 == 6:
            raise rf.ServiceError("gone", retryable=False)
        if number % 3 == 2 and self.asked[solution_str] == 1:
            raise rf.ServiceError("busy", status=503)
        return number / 10


LIMITS: dict[str, Any] = {"max_concurrency": 4}


def told_by(path: Path) -> dict[int, dict[str, Any]]:
    """The totals of each step; of times, which depend on the pauses before retries, how many there are."""
    lines = {step: by["reward"] for step, by in read_steps(path).items()}
    for line in lines.values():
        for name in ("in_flight", "first_submitted_s", "first_delivered_s", "last_delivered_s"):
            assert line.pop(name) is not None
        for name in ("latency_s", "waited_s"):
            line[name] = line[name]["count"]
    return lines


def test_the_record_of_a_shared_agents_run_tells_what_that_of_its_own_agent_would(tmp_path: Path) -> None:
    async def judge(agent: Any) -> None:
        for step in range(2):
            await agent.submit(rollouts(12, step=step)).all()

    async def alone() -> None:
        async with RewardAgent(Moody(), run_dir=tmp_path / "alone", **LIMITS) as agent:
            await judge(agent)

    async def shared() -> None:
        async with (
            KillableHost(lambda: RewardAgent(Moody(), serves_runs=True, **LIMITS)) as host,
            host.client("other") as other,
            host.client("a", run_dir=tmp_path / "shared") as agent,
        ):
            await judge(agent)
            await other.submit(rollouts(4)).all()  # which is none of this run's business

    clock.run(alone())
    clock.run(shared())
    assert told_by(tmp_path / "shared") == told_by(tmp_path / "alone")
    first = told_by(tmp_path / "shared")[0]
    assert (first["calls"], first["retries"], first["failed"]) == (16, 4, {"service": 1})
    assert first["cost_usd"] == pytest.approx(0.16)
    assert first["latency_s"] == 12
    kinds = [Counter(type(event).__name__ for event in read_events(tmp_path / name)) for name in ("shared", "alone")]
    del kinds[1][AccountLoad.__name__]  # the load of a shared account is that of all its runs
    assert kinds[0] == kinds[1]
    *_, last = read_events(tmp_path / "shared")
    assert isinstance(last, AgentEnded)


def test_calls_are_on_the_clients_clock_and_their_waiting_is_known() -> None:
    async def main() -> EventList:
        sink = EventList()
        async with (
            KillableHost(lambda: RewardAgent(Moody(), serves_runs=True, max_concurrency=1)) as host,
            host.client("a", sink=sink) as agent,
        ):
            await agent.submit(rollouts(2)).all()
        return sink

    sink = clock.run(main())
    (opened,), calls, verdicts = sink.of(AgentOpened), sink.of(CallEnded), sink.of(VerdictReached)
    assert opened.settings["max_concurrency"] == 1
    assert [round(call.started_s - opened.at_s, 1) for call in calls] == [0.0, 0.5]
    assert [round(call.latency_s, 2) for call in calls] == [0.5, 0.51]
    assert [round(verdict.waited_s, 1) for verdict in verdicts] == [0.0, 0.5]
    assert all(call.at_s <= verdicts[0].at_s for call in calls)


def test_a_client_that_keeps_the_record_hears_of_calls_that_others_of_its_run_asked_for() -> None:
    async def main() -> tuple[EventList, float]:
        sink = EventList()
        make = lambda: RewardAgent(Moody(), serves_runs=True)  # noqa: E731
        async with KillableHost(make) as host, host.client("a") as worker, host.client("a", sink=sink):
            for rollout in rollouts(6):
                await worker.score(rollout)
            await asyncio.sleep(10)  # what nobody waits for comes with the next poll
            before = len(sink.of(CallEnded))
            async with host.client("a", sink=EventList()) as late:
                await late.score(rf.Rollout(group_id="late", response="1"))
        return sink, before

    sink, before = clock.run(main())
    assert before == 8
    assert len(sink.of(CallEnded)) == 9  # the last one when it said goodbye
    assert sink.of(VerdictReached) == []


def test_a_host_that_dies_takes_along_only_calls_that_it_had_not_told_of() -> None:
    async def main() -> EventList:
        sink = EventList()
        async with (
            KillableHost(lambda: RewardAgent(Moody(), serves_runs=True, **LIMITS)) as host,
            host.client("a", sink=sink) as agent,
        ):
            ticket = agent.submit(rollouts(12))
            await ticket.take(2)
            await host.kill()
            await host.start()
            await ticket.all()
        return sink

    sink = clock.run(main())
    verdicts = Counter((event.group_id, event.index) for event in sink.of(VerdictReached))
    assert set(verdicts.values()) == {1}
    assert len(verdicts) == 12
    assert len(sink.of(GroupDelivered)) == 6
    assert 16 <= len(sink.of(CallEnded)) <= 16 + 4


def test_an_event_comes_back_as_it_was_but_for_the_clock() -> None:
    event = LimitChanged(at_s=5.0, account="judge", governor="pace", value=60.0, reason="rate_limited")
    assert unpack_event(pack_event(event), clock_offset_s=2.0) == LimitChanged(
        at_s=7.0, account="judge", governor="pace", value=60.0, reason="rate_limited"
    )


def test_the_fastest_message_says_how_far_the_clocks_are_apart(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[float]:
        sink = EventList()
        inbox = Inbox(sink)
        now_s = asyncio.get_running_loop().time()
        for sent_s in (now_s - 103.0, now_s - 101.0, now_s - 102.0):  # 100 s apart, and 3, 1 and 2 s on the way
            event = LimitChanged(at_s=now_s - 110.0, account="judge", governor="pace", value=None, reason="")
            delivery = Delivery(1, [], events=[pack_event(event)], sent_s=sent_s, first_event=len(sink.events))
            inbox.received(delivery)
            inbox.received(delivery)  # which is no news any more
        inbox.received(Delivery(2, [], num_events_lost=7, sent_s=now_s))
        return [now_s - event.at_s for event in sink.events]

    assert [round(ago_s, 6) for ago_s in clock.run(main())] == [7.0, 9.0, 9.0]
    assert "7 calls are not in the record" in caplog.text


def test_events_go_to_one_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with KillableHost(lambda: RewardAgent(Moody(), serves_runs=True)) as host:
            with pytest.raises(InvalidInput, match="events must go to one place"):
                async with host.client("a", run_dir=tmp_path / "run", sink=EventList()):
                    pass

    clock.run(main())
    assert not (tmp_path / "run").exists()


def test_a_directory_that_holds_something_else_is_refused_before_anybody_is_greeted(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()

    async def main() -> None:
        async with KillableHost(lambda: RewardAgent(Moody(), serves_runs=True)) as host:
            with pytest.raises(InvalidInput, match="a new run needs a directory"):
                async with host.client("a", run_dir=tmp_path):
                    pass
            assert host.current is not None
            assert host.current.statistics().clients == ()

    clock.run(main())
    with pytest.raises(InvalidInput):
        RunDirectory.open(tmp_path)


def test_on_a_line_that_loses_and_repeats_messages_every_call_and_verdict_is_in_the_record_once() -> None:
    async def main() -> tuple[EventList, int]:
        sink, judge = EventList(), Moody()
        make = lambda: RewardAgent(judge, serves_runs=True, max_concurrency=4)  # noqa: E731
        async with (
            UnreliableHost(make, chance=random.Random(3), fault_share=0.4) as host,
            host.client("a", sink=sink) as agent,
        ):
            await agent.submit(rollouts(40)).all()
            await asyncio.sleep(30)
        return sink, judge.asked.total()

    sink, num_asked = clock.run(main())
    assert len(sink.of(VerdictReached)) == 40
    assert len(sink.of(CallEnded)) == num_asked
    calls = Counter((call.group_id, call.index, call.attempt) for call in sink.of(CallEnded))
    assert set(calls.values()) == {1}
