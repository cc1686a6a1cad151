"""From rollouts to jobs and from verdicts to groups, with the hooks that see whole groups."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from agent_at_work import now
from rollouts import group
from scoring import score_groups, values
from simple_rewards import (
    Logging,
    PostProcessing,
    async_number,
)

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.groups.job import Job

# -- post_process_scores and score_group -------------------------------------------------------------------------------


def test_post_process_sees_a_complete_group_with_failures_as_nan_and_its_values_count() -> None:
    judge = PostProcessing(lambda scores: [score * 10 for score in scores])
    (one,) = score_groups(judge, group("g", "1", "oops", "3"))
    assert len(judge.seen) == 1
    assert judge.seen[0][0] == 1.0
    assert math.isnan(judge.seen[0][1])
    assert judge.seen[0][2] == 3.0
    assert [reward.value for reward in one.rewards] == [10.0, None, 30.0]
    assert [reward.imputed for reward in one.rewards] == [False, False, False]


def test_a_finite_value_for_a_failure_is_scored_and_marked_and_counted_as_imputed() -> None:
    async def main() -> None:
        judge = PostProcessing(lambda scores: [0.0 if math.isnan(score) else score for score in scores])
        async with rf.RewardAgent(judge) as agent:
            (one,) = await agent.submit(group("g", "1", "oops")).all()
            assert [(reward.value, reward.imputed) for reward in one.rewards] == [(1.0, False), (0.0, True)]
            assert one.rewards[1].status == "scored"
            assert agent.statistics().verdicts.imputed == 1

    clock.run(main())


@pytest.mark.parametrize("returned", [[1.0], [1.0, 2.0, 3.0], None, "ab", 1.0])
def test_a_post_process_that_returns_the_wrong_thing_fails_the_group_and_shifts_nothing(returned: Any) -> None:
    (one,) = score_groups(PostProcessing(lambda scores: returned), group("g", "1", "2"))
    assert [reward.value for reward in one.rewards] == [None, None]
    assert all("post_process_scores" in (reward.error or "") for reward in one.rewards)


def test_a_post_process_that_raises_fails_its_group_alone() -> None:
    def change(scores: list[float]) -> list[float]:
        if scores[0] == 2.0:
            raise ValueError("no")
        return scores

    groups = score_groups(PostProcessing(change), [*group("a", "1"), *group("b", "2"), *group("c", "3")])
    assert values(groups) == {"a": [1.0], "b": [None], "c": [3.0]}


def test_a_nan_from_post_process_makes_a_score_a_failure() -> None:
    (one,) = score_groups(PostProcessing(lambda scores: [math.nan, scores[1]]), group("g", "1", "2"))
    assert [reward.value for reward in one.rewards] == [None, 2.0]


def test_post_process_may_be_async() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return float(solution_str)

        async def post_process_scores(self, scores: list[float]) -> list[float]:
            await asyncio.sleep(5)
            return [score + 1 for score in scores]

    assert values(score_groups(Judge, group("g", "1", "2"))) == {"g": [2.0, 3.0]}


def test_post_process_of_one_group_does_not_hold_up_another() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return float(solution_str)

        async def post_process_scores(self, scores: list[float]) -> list[float]:
            await asyncio.sleep(100 if scores[0] == 1.0 else 1)
            return scores

    async def main() -> None:
        async with rf.RewardAgent(Judge) as agent:
            ticket = agent.submit([*group("slow", "1"), *group("fast", "2")])
            arrived = [(one.group_id, now()) async for one in ticket]
            assert arrived == [("fast", 1.0), ("slow", 100.0)]

    clock.run(main())


def test_post_process_is_never_called_with_a_part_of_a_group() -> None:
    """It is `called with a complete group's scores`; a group cancelled before it was complete is not one."""

    async def main() -> None:
        judge = PostProcessing(lambda scores: scores)
        async with rf.RewardAgent(judge) as agent:
            ticket = agent.submit(group("g", "1", "2", "3")[:2])
            await asyncio.sleep(5)
            ticket.cancel()
            (one,) = await ticket.all()
            assert not one.is_complete
        assert judge.seen == []

    clock.run(main())


def test_score_group_sees_the_whole_group_in_index_order_once_its_last_rollout_is_in() -> None:
    class Judge:
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        async def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[float]:
            self.seen.append([rollout.index for rollout in rollouts])
            longest = max(len(rollout.response) for rollout in rollouts)
            return [float(len(rollout.response) == longest) for rollout in rollouts]

    async def main() -> None:
        judge = Judge()
        async with rf.RewardAgent(judge) as agent:
            first, second, third = group("g", "a", "ccc", "bb")
            ticket = agent.submit(third)
            agent.submit(first)
            await asyncio.sleep(10)
            assert judge.seen == []
            agent.submit(second)
            (one,) = await ticket.all()
            assert judge.seen == [[0, 1, 2]]
            assert [reward.value for reward in one.rewards] == [0.0, 1.0, 0.0]
            assert [rollout.response for rollout in one.rollouts] == ["a", "ccc", "bb"]

    clock.run(main())


def test_a_failed_score_group_call_fails_every_rollout_of_the_group_and_no_other() -> None:
    class Judge:
        async def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[float]:
            if rollouts[0].group_id == "bad":
                raise ValueError("no")
            return [1.0] * len(rollouts)

    groups = score_groups(Judge, [*group("bad", "1", "2"), *group("good", "3", "4")])
    assert values(groups) == {"bad": [None, None], "good": [1.0, 1.0]}


def test_hooks_that_queue_for_a_thread_do_not_run_out_of_time_there() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return 1.0

        def post_process_scores(self, scores: list[float]) -> list[float]:
            time.sleep(0.02)  # real time is the subject: 200 of these in a few threads take longer than the time limit
            return scores

    async def main() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(Judge, timeout_s=0.3) as agent:
            return await agent.submit(rollout for number in range(200) for rollout in group(str(number), "x")).all()

    assert all(one.num_failed == 0 for one in asyncio.run(main()))


# -- log ---------------------------------------------------------------------------------------------------------------


def test_log_is_called_once_per_submitted_batch_when_it_is_complete_with_aligned_lists() -> None:
    judge = Logging()

    async def main() -> None:
        async with rf.RewardAgent(judge) as agent:
            slow = agent.submit([*group("a", "9", "3"), *group("b", "1")])
            await agent.submit(group("c", "2")).all()
            await asyncio.sleep(2)
            assert [entry[4] for entry in judge.logged] == [["c"]], "the first batch is not complete yet"
            await slow.all()

    clock.run(main())
    assert len(judge.logged) == 2
    timestamps, queries, results, latencies, uids = judge.logged[1]
    rows = sorted(zip(uids, latencies, queries, timestamps, results, strict=True), key=lambda row: (row[0], -row[1]))
    assert [row[:3] for row in rows] == [("a", 9.0, "q9"), ("a", 3.0, None), ("b", 1.0, "q1")]
    assert all(datetime.fromisoformat(row[3]).year > 2000 for row in rows)
    assert rows[0][4] == "e9"  # the reward's own words
    assert "three" in rows[1][4]


def test_log_verdicts_gets_all_that_is_known_of_every_verdict_of_a_batch() -> None:
    class Judge(Logging):
        def __init__(self) -> None:
            super().__init__()
            self.batches: list[list[dict[str, Any]]] = []

        def log_verdicts(self, verdicts: list[dict[str, Any]]) -> None:
            self.batches.append(verdicts)

    judge = Judge()
    score_groups(judge, group("a", "9", "3"))
    ((nine, three),) = judge.batches
    assert (nine["group_id"], nine["index"], nine["query"], nine["score"]) == ("a", 0, "q9", 9.0)
    assert (nine["explanation"], nine["error"], nine["latency_s"], nine["extras"]) == ("e9", None, 9.0, {"x": 1})
    assert nine["at_unix_s"] > 0
    assert three["score"] is None
    assert "three" in three["error"]


def test_log_is_called_once_for_a_ticket_that_was_filled_one_rollout_at_a_time() -> None:
    judge = Logging()

    async def main() -> None:
        async with rf.RewardAgent(judge) as agent:
            with agent.open() as ticket:
                for rollout in [*group("a", "1", "2"), *group("b", "4")]:
                    ticket.submit(rollout)
                    await asyncio.sleep(10)
                assert judge.logged == [], "more may still come"
            await ticket.all()

    clock.run(main())
    assert [sorted(entry[4]) for entry in judge.logged] == [["a", "a", "b"]]


def test_a_log_that_raises_is_named_in_the_log_and_costs_no_verdict(caplog: pytest.LogCaptureFixture) -> None:
    class Judge(Logging):
        def log(self, *lists: Any) -> None:
            raise OSError("disk full")

    with caplog.at_level(logging.ERROR, "rewardflow"):
        groups = score_groups(Judge(), group("a", "1"))
    assert values(groups) == {"a": [1.0]}
    assert "disk full" in caplog.text


def test_a_log_that_hangs_holds_up_no_verdict() -> None:
    class Judge(Logging):
        async def log(self, *lists: Any) -> None:  # type: ignore[override]
            await asyncio.sleep(1000)

    async def main() -> None:
        async with rf.RewardAgent(Judge(), timeout_s=2000, close_timeout_s=5) as agent:
            await agent.submit(group("a", "1")).all()
            await agent.submit(group("b", "1")).all()
            assert now() == 2.0

    clock.run(main())


# -- delivery ----------------------------------------------------------------------------------------------------------


def test_a_group_is_delivered_the_moment_its_last_verdict_is_in_whatever_the_order() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(float(solution_str))
        return float(solution_str)

    async def main() -> None:
        async with rf.RewardAgent(reward) as agent:
            ticket = agent.submit([*group("a", "5", "40"), *group("b", "30", "2"), *group("c", "1", "3", "7")])
            arrived = [(one.group_id, now()) async for one in ticket]
        assert arrived == [("c", 7.0), ("b", 30.0), ("a", 40.0)]

    clock.run(main())


def test_one_group_may_be_completed_by_several_submits_and_belongs_to_the_first_ticket() -> None:
    async def main() -> None:
        async with rf.RewardAgent(async_number) as agent:
            first, second = group("g", "1", "2")
            owner, later = agent.submit(second), agent.submit(first)
            assert await later.all() == []
            assert values(await owner.all()) == {"g": [1.0, 2.0]}

    clock.run(main())


def test_the_same_group_id_in_two_steps_names_two_groups() -> None:
    async def main() -> None:
        async with rf.RewardAgent(async_number) as agent:
            ticket = agent.submit([*group("g", "1", "2", step=0), *group("g", "3", "4", step=1)])
            groups = await ticket.all()
            assert [(one.step, [reward.value for reward in one.rewards]) for one in groups] == [
                (0, [1.0, 2.0]),
                (1, [3.0, 4.0]),
            ]

    clock.run(main())


def test_a_reward_that_cancels_its_own_ticket_harms_no_other_call() -> None:
    async def main() -> list[Any]:
        tickets: dict[str, rf.Ticket] = {}

        async def reward(solution_str: str) -> float:
            if solution_str == "0":
                await asyncio.sleep(1)
                tickets["0"].cancel()
            return 1.0

        async with rf.RewardAgent(reward, max_concurrency=1) as agent:
            for name in ("0", "1", "2"):
                tickets[name] = agent.submit(group(name, name))
            return [(await ticket.all())[0].rewards[0].kind for ticket in tickets.values()]

    assert clock.run(main()) == ["cancelled", None, None]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_delivered_groups_leave_nothing_for_the_garbage_collector() -> None:
    async def main() -> int:
        async with rf.RewardAgent(async_number) as agent:
            await agent.submit(group("g", "1", "2", "3")).all()
            return sum(type(one) is Job and one not in before for one in gc.get_objects())

    gc.collect()
    before = {one for one in gc.get_objects() if type(one) is Job}  # other tests may keep theirs
    gc.disable()
    try:
        assert clock.run(main()) == 0
    finally:
        gc.enable()
