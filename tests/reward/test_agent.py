"""The agent through its public face: the user's contract, its lifetime, order, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_at_work import left_over, now
from rollouts import group

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import JournalLocked, NewerJournal, NotAJournal


def score_all(reward: Any, batch: Sequence[rf.Rollout], **options: Any) -> list[rf.ScoredGroup]:
    """Submit a batch on the jumping clock and return its groups in the order of submission."""

    async def main() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(reward, **options) as agent:
            return await agent.submit(batch).all()

    return clock.run(main())


def score_one(reward: Any, response: str = "7", **options: Any) -> rf.Reward:
    return score_all(reward, group("g", response), **options)[0].rewards[0]


def values(groups: Sequence[rf.ScoredGroup]) -> dict[str, list[float | None]]:
    return {one.group_id: [reward.value for reward in one.rewards] for one in groups}


# -- the forms a reward may take ---------------------------------------------------------------------------------------


def plain(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None) -> float:
    return float(solution_str)


async def coroutine(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    await asyncio.sleep(1)
    return float(solution_str)


def batch(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
    return [float(one) for one in solution_strs]


async def async_batch(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
    await asyncio.sleep(1)
    return [float(one) for one in solution_strs]


class PlainJudge:
    def compute_score(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        return float(solution_str)


class AsyncJudge:
    async def compute_score(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None
    ) -> float:
        await asyncio.sleep(1)
        return float(solution_str)


class BatchJudge:
    def compute_score(self, data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
        return [float(one) for one in solution_strs]


class CallableJudge:
    async def __call__(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        return float(solution_str)


class GroupJudge:
    def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[float]:
        return [float(rollout.response) for rollout in rollouts]


class AsyncGroupJudge:
    async def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[float]:
        await asyncio.sleep(1)
        return [float(rollout.response) for rollout in rollouts]


FORMS = [
    *[plain, coroutine, batch, async_batch],
    *[PlainJudge, AsyncJudge, BatchJudge, CallableJudge, GroupJudge, AsyncGroupJudge],
    *[PlainJudge(), AsyncJudge(), GroupJudge()],
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: getattr(form, "__name__", f"{type(form).__name__}()"))
def test_every_form_of_reward_scores_groups_of_different_sizes(form: Any) -> None:
    rollouts = [*group("a", "1", "2", "3"), *group("b", "4"), *group("c", "5", "6")]
    groups = score_all(form, rollouts)
    assert values(groups) == {"a": [1.0, 2.0, 3.0], "b": [4.0], "c": [5.0, 6.0]}
    for one in groups:
        for rollout, reward in zip(one.rollouts, one.rewards, strict=True):
            assert reward.value == float(rollout.response)
            assert reward.status == "scored"
            assert reward.attempts == 1


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_file_written_for_verl_works_unchanged(tmp_path: Path, workers: str) -> None:
    (tmp_path / "verl_reward.py").write_text(
        textwrap.dedent(
            """
            def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
                assert data_source == "gsm8k" and extra_info["difficulty"] == 3
                return {"score": float(solution_str == ground_truth), "acc": solution_str}
            """
        )
    )
    rollouts = group("a", "41", "42", ground_truth="42", data_source="gsm8k", extra_info={"difficulty": 3})
    options = {"workers": workers, "max_concurrency": 2}
    (one,) = score_all(f"{tmp_path}/verl_reward.py:compute_score", rollouts, **options)
    assert [reward.value for reward in one.rewards] == [0.0, 1.0], [reward.error for reward in one.rewards]
    assert one.rewards[0].extras["acc"] == "41"


def test_a_reward_is_loaded_from_a_module_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package_of_rewards").mkdir()
    (tmp_path / "my_package_of_rewards" / "judge.py").write_text("def rate(response):\n    return float(response)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert score_one("my_package_of_rewards.judge:rate").value == 7.0


def test_extra_info_carries_group_uid_and_group_size_next_to_what_the_rollout_has() -> None:
    seen: list[dict[str, Any]] = []

    async def reward(solution_str: str, extra_info: dict[str, Any]) -> float:
        seen.append(extra_info)
        return 1.0

    score_all(reward, group("q17", "x", "y", extra_info={"mine": 1}))
    assert seen == [{"mine": 1, "group_uid": "q17", "group_size": 2}] * 2


def test_what_one_call_writes_into_extra_info_no_other_call_and_no_rollout_sees() -> None:
    async def reward(solution_str: str, extra_info: dict[str, Any]) -> float:
        extra_info["count"] = extra_info.get("count", 0) + 1
        return float(extra_info["count"])

    shared: dict[str, Any] = {}
    (one,) = score_all(reward, group("g", "x", "y", "z", extra_info=shared))
    assert [reward.value for reward in one.rewards] == [1.0, 1.0, 1.0]
    assert shared == {}


# -- what a reward may return ------------------------------------------------------------------------------------------


def returning(result: Any) -> Callable[..., Any]:
    async def reward(solution_str: str) -> Any:
        return result

    return reward


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, 1.0),
        (-3, -3.0),
        ((0.5, "q", "because"), 0.5),
        ((0.5, "q"), 0.5),
        ((0.5,), 0.5),
        ({"score": 2}, 2.0),
        (rf.Reward(value=0.25), 0.25),
    ],
)
def test_every_return_form_is_scored(result: Any, value: float) -> None:
    assert score_one(returning(result)).value == value


def test_query_and_explanation_of_a_tuple_are_kept() -> None:
    reward = score_one(returning((0.5, "rate this", "it is half right")))
    assert (reward.query, reward.explanation) == ("rate this", "it is half right")


def test_extras_of_a_mapping_are_kept() -> None:
    reward = score_one(returning({"score": 1.0, "query": "q", "explanation": "e", "acc": True, "tag": "x"}))
    assert (reward.query, reward.explanation) == ("q", "e")
    assert dict(reward.extras) == {"acc": True, "tag": "x"}


@pytest.mark.parametrize(
    "result",
    [
        *[math.nan, math.inf, -math.inf, None, "0.5", [], {}, object(), 1j, (1, 2, 3, 4)],
        *[{"score": None}, {"score": math.nan}, {"score": "0.5"}, {"points": 1}, (math.nan, "q", "e")],
    ],
)
def test_what_is_not_a_finite_score_is_a_failed_verdict_with_a_reason_and_no_number(result: Any) -> None:
    reward = score_one(returning(result))
    assert (reward.status, reward.value) == ("failed", None)
    assert reward.kind in rf.FAILURE_KINDS
    assert reward.error


def test_an_exception_is_a_failed_verdict_that_says_what_was_raised() -> None:
    async def reward(solution_str: str) -> float:
        raise KeyError("rubric")

    verdict = score_one(reward)
    assert (verdict.status, verdict.value, verdict.kind) == ("failed", None, "user_error")
    assert verdict.error is not None
    assert "KeyError" in verdict.error
    assert "rubric" in verdict.error


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), StopIteration(), GeneratorExit()])
def test_even_an_odd_exception_of_one_call_fails_that_call_alone(raised: BaseException) -> None:
    def reward(solution_str: str) -> float:
        if solution_str == "odd":
            raise raised
        return 1.0

    (one,) = score_all(reward, group("g", "fine", "odd", "fine"), max_concurrency=2)
    assert [reward.value for reward in one.rewards] == [1.0, None, 1.0]


def test_a_reward_record_with_odd_fields_costs_nobody_a_verdict() -> None:
    odd: dict[str, Any] = {"extras": None, "components": None, "cost_usd": None, "tokens": "12"}

    async def reward(solution_str: str) -> rf.Reward:
        return rf.Reward(value=1.0, **(odd if solution_str == "odd" else {}))

    parts = [rf.Weighted(reward, name="a"), rf.Weighted(reward, name="b")]
    (one,) = score_all(parts, group("g", "fine", "odd", "fine"))
    assert [reward.value for reward in one.rewards] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), StopIteration()])
def test_even_an_odd_exception_of_a_coroutine_fails_that_call_alone(raised: BaseException) -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        if solution_str == "odd":
            raise raised
        return 1.0

    (one,) = score_all(reward, group("g", "fine", "odd", "fine"), max_concurrency=1)
    assert [reward.value for reward in one.rewards] == [1.0, None, 1.0]


def test_awaiting_a_task_that_somebody_cancelled_is_an_error_of_the_reward_and_stops_nothing() -> None:
    async def reward(solution_str: str) -> float:
        task = asyncio.ensure_future(asyncio.sleep(100))
        asyncio.get_running_loop().call_later(1, task.cancel)
        if solution_str == "odd":
            await task
        task.cancel()
        return 1.0

    (one,) = score_all(reward, group("g", "odd", "fine", "odd", "fine"), max_concurrency=1)
    assert [reward.kind for reward in one.rewards] == ["user_error", None, "user_error", None]


async def ask(answer: float, after_s: float) -> float:
    await asyncio.sleep(after_s)
    if answer < 0:
        raise ConnectionError("the first judge")
    return answer


def test_a_reward_may_use_timeouts_of_its_own_and_go_on_for_long_afterwards() -> None:
    async def reward(solution_str: str) -> float:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                return await ask(0.1, 50)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(ask(0.2, 50), 1)
        return await ask(0.3, 60)

    (one,) = score_all(reward, group("g", "x", "y", "z"), max_concurrency=2)
    assert [(reward.value, reward.latency_s) for reward in one.rewards] == [(0.3, 62.0)] * 3


async def first_of_two_judges_fails() -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(-1.0, 1))
            tasks.create_task(ask(0.1, 50))
    except* ConnectionError:
        pass


def test_a_reward_may_use_a_task_group_that_fails_and_go_on_for_long_afterwards() -> None:
    """Until Python 3.13 such a group leaves the task's count of cancellations raised, which must not matter here."""

    async def reward(solution_str: str) -> float:
        await first_of_two_judges_fails()
        return await ask(0.3, 60)

    (one,) = score_all(reward, group("g", "x", "y", "z"), max_concurrency=2)
    assert [(reward.value, reward.latency_s) for reward in one.rewards] == [(0.3, 61.0)] * 3, one.rewards


def test_what_one_call_leaves_behind_in_its_task_does_not_change_the_calls_after_it() -> None:
    async def reward(solution_str: str) -> float:
        if solution_str == "group":
            await first_of_two_judges_fails()
        if solution_str == "odd":
            raise asyncio.CancelledError
        if solution_str == "late":
            await asyncio.sleep(1000)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=1, timeout_s=100, max_attempts=1) as agent:
            ticket = agent.submit(group("g", "group", "odd", "late", "fine", "odd", "fine"))
            async with asyncio.timeout(3600):
                (one,) = await ticket.all()
        kinds = [reward.kind for reward in one.rewards]
        assert kinds == [None, "user_error", "timeout", None, "user_error", None]

    clock.run(main())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_reward_with_the_wrong_number_of_results_fails_the_group_and_shifts_nothing(count: int) -> None:
    async def reward(solution_strs: list[str]) -> list[float]:
        return [1.0] * count

    (one,) = score_all(reward, group("g", "x", "y"))
    assert [reward.value for reward in one.rewards] == [None, None]


def test_one_bad_result_of_a_batch_reward_fails_its_rollout_alone() -> None:
    async def reward(solution_strs: list[str]) -> list[Any]:
        return [1.0, None, {"score": 3.0, "only_here": 1}]

    (one,) = score_all(reward, group("g", "x", "y", "z"))
    assert [reward.value for reward in one.rewards] == [1.0, None, 3.0]


def test_a_batch_reward_is_called_once_per_group_with_aligned_lists() -> None:
    calls: list[tuple[Any, ...]] = []

    async def reward(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
        calls.append((data_sources, solution_strs, ground_truths, [info["group_uid"] for info in extra_infos]))
        return [0.0] * len(solution_strs)

    score_all(reward, [*group("a", "1", "2", ground_truth=9, data_source="d"), *group("b", "3", ground_truth=8)])
    assert sorted(calls) == [([""], ["3"], [8], ["b"]), (["d", "d"], ["1", "2"], [9, 9], ["a", "a"])]


# -- post_process_scores, score_group, log, close ----------------------------------------------------------------------


class PostProcessing:
    """Fails for responses that are no numbers."""

    def __init__(self, change: Callable[[list[float]], Any] = list) -> None:
        self.change = change
        self.seen: list[list[float]] = []

    async def compute_score(self, solution_str: str) -> float:
        await asyncio.sleep(1)
        return float(solution_str)

    def post_process_scores(self, scores: list[float]) -> Any:
        self.seen.append(list(scores))
        return self.change(scores)


def test_post_process_sees_a_complete_group_with_failures_as_nan_and_its_values_count() -> None:
    judge = PostProcessing(lambda scores: [score * 10 for score in scores])
    (one,) = score_all(judge, group("g", "1", "oops", "3"))
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
    (one,) = score_all(PostProcessing(lambda scores: returned), group("g", "1", "2"))
    assert [reward.value for reward in one.rewards] == [None, None]
    assert all("post_process_scores" in (reward.error or "") for reward in one.rewards)


def test_a_post_process_that_raises_fails_its_group_alone() -> None:
    def change(scores: list[float]) -> list[float]:
        if scores[0] == 2.0:
            raise ValueError("no")
        return scores

    groups = score_all(PostProcessing(change), [*group("a", "1"), *group("b", "2"), *group("c", "3")])
    assert values(groups) == {"a": [1.0], "b": [None], "c": [3.0]}


def test_a_nan_from_post_process_makes_a_score_a_failure() -> None:
    (one,) = score_all(PostProcessing(lambda scores: [math.nan, scores[1]]), group("g", "1", "2"))
    assert [reward.value for reward in one.rewards] == [None, 2.0]


def test_post_process_may_be_async() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return float(solution_str)

        async def post_process_scores(self, scores: list[float]) -> list[float]:
            await asyncio.sleep(5)
            return [score + 1 for score in scores]

    assert values(score_all(Judge, group("g", "1", "2"))) == {"g": [2.0, 3.0]}


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

    groups = score_all(Judge, [*group("bad", "1", "2"), *group("good", "3", "4")])
    assert values(groups) == {"bad": [None, None], "good": [1.0, 1.0]}


class Logging:
    def __init__(self) -> None:
        self.logged: list[tuple[list[Any], ...]] = []
        self.num_closed = 0

    async def compute_score(self, solution_str: str, extra_info: Any) -> dict[str, Any]:
        await asyncio.sleep(float(solution_str))
        if solution_str == "3":
            raise ValueError("three")
        return {"score": float(solution_str), "query": f"q{solution_str}", "explanation": f"e{solution_str}", "x": 1}

    def log(self, timestamps: Any, queries: Any, results: Any, latencies: Any, group_uids: Any) -> None:
        self.logged.append((timestamps, queries, results, latencies, group_uids))

    def close(self) -> None:
        self.num_closed += 1


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
    assert all(isinstance(row[3], float) and row[3] > 0 for row in rows)
    assert rows[0][4] == {"score": 9.0, "explanation": "e9", "error": None, "x": 1}
    assert rows[1][4]["score"] is None
    assert "three" in rows[1][4]["error"]


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
        groups = score_all(Judge(), group("a", "1"))
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


@pytest.mark.parametrize("is_built", [True, False])
def test_the_agent_closes_its_reward_once_after_the_last_call_has_ended(is_built: bool) -> None:
    happened: list[str] = []

    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            try:
                await asyncio.sleep(1000)
            finally:
                happened.append("call ended")
            return 1.0

        def close(self) -> None:
            happened.append("close")

    async def main() -> None:
        async with rf.RewardAgent(Judge if is_built else Judge()) as agent:
            agent.submit(group("a", "1"))
            await asyncio.sleep(1)
            assert happened == []

    clock.run(main())
    assert happened == ["call ended", "close"]


def test_aclose_is_awaited_and_preferred_to_close() -> None:
    happened: list[str] = []

    class Judge(PlainJudge):
        def close(self) -> None:
            happened.append("close")

        async def aclose(self) -> None:
            await asyncio.sleep(3)
            happened.append("aclose")

    score_all(Judge, group("a", "1"))
    assert happened == ["aclose"]


def test_a_close_that_raises_is_named_in_the_log_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Judge(PlainJudge):
        async def aclose(self) -> None:
            raise RuntimeError("session already gone")

    with caplog.at_level(logging.ERROR, "rewardflow"):
        assert values(score_all(Judge, group("a", "1"))) == {"a": [1.0]}
    assert "session already gone" in caplog.text


def test_a_close_that_hangs_ends_in_bounded_time() -> None:
    class Judge(AsyncJudge):
        async def aclose(self) -> None:
            await asyncio.sleep(math.inf)

    async def main() -> None:
        async with rf.RewardAgent(Judge, close_timeout_s=4) as agent:
            await agent.submit(group("a", "1")).all()
        assert now() <= 1 + 4 + 1

    clock.run(main())


def test_the_reward_is_closed_also_when_the_block_raises() -> None:
    judge = Logging()

    async def main() -> None:
        async with rf.RewardAgent(judge) as agent:
            agent.submit(group("a", "5"))
            await asyncio.sleep(1)
            raise KeyError("in the block")

    with pytest.raises(KeyError, match="in the block"):
        clock.run(main())
    assert judge.num_closed == 1


# -- weighted rewards --------------------------------------------------------------------------------------------------


async def length(solution_str: str) -> dict[str, Any]:
    return {"score": float(len(solution_str)), "letters": solution_str}


async def number(solution_str: str) -> float:
    await asyncio.sleep(1)
    return float(solution_str)


def test_weighted_rewards_make_one_sum_and_show_each_component() -> None:
    parts = [rf.Weighted(length, 0.5, name="length"), rf.Weighted(number, 2.0, name="number")]
    (one,) = score_all(parts, group("g", "12", "3"))
    assert [reward.value for reward in one.rewards] == [0.5 * 2 + 2.0 * 12, 0.5 * 1 + 2.0 * 3]
    assert dict(one.rewards[0].components) == {"length": 2.0, "number": 12.0}


def test_if_one_component_fails_the_sum_is_failed_not_smaller_and_the_others_are_still_shown() -> None:
    parts = [rf.Weighted(length, name="length"), rf.Weighted(number, name="number")]
    (one,) = score_all(parts, group("g", "oops", "3"))
    failed, scored = one.rewards
    assert (failed.value, failed.status) == (None, "failed")
    assert failed.components["length"] == 4.0
    assert failed.components["number"] is None
    assert "number" in (failed.error or "")
    assert scored.value == 4.0


def test_a_failed_component_of_weight_zero_still_fails_the_sum() -> None:
    parts = [rf.Weighted(length, name="length"), rf.Weighted(number, 0.0, name="number")]
    assert score_all(parts, group("g", "oops"))[0].rewards[0].value is None


def test_a_negative_weight_subtracts() -> None:
    parts = [rf.Weighted(number, name="number"), rf.Weighted(length, -1.0, name="length")]
    assert score_all(parts, group("g", "12"))[0].rewards[0].value == 10.0


def test_weights_that_overflow_give_a_failed_verdict_not_an_error() -> None:
    parts = [rf.Weighted(number, 1e308, name="a"), rf.Weighted(number, 1e308, name="b")]
    assert values(score_all(parts, [*group("g", "10"), *group("h", "0")])) == {"g": [None], "h": [0.0]}


def test_group_and_single_rewards_and_post_processing_mix_in_one_sum() -> None:
    judge = PostProcessing(lambda scores: [-score for score in scores])
    parts = [rf.Weighted(judge, name="judge"), rf.Weighted(GroupJudge(), 10.0, name="group")]
    assert values(score_all(parts, group("g", "1", "2"))) == {"g": [9.0, 18.0]}


def test_a_component_with_few_slots_holds_up_no_other_component() -> None:
    started: list[tuple[str, float]] = []

    async def rule(solution_str: str) -> float:
        started.append(("rule", now()))
        return 1.0

    async def judge(solution_str: str) -> float:
        started.append(("judge", now()))
        await asyncio.sleep(10)
        return 1.0

    parts = [rf.Weighted(judge, name="judge", limits={"max_concurrency": 1}), rf.Weighted(rule, name="rule")]
    score_all(parts, [rollout for i in range(4) for rollout in group(f"g{i}", "x")])
    assert [at for name, at in started if name == "rule"] == [0.0] * 4
    assert [at for name, at in started if name == "judge"] == [0.0, 10.0, 20.0, 30.0]


def test_rewards_of_one_account_share_its_limit() -> None:
    out = most = 0

    def make(name: str) -> rf.Weighted:
        async def judge(solution_str: str) -> float:
            nonlocal out, most
            out += 1
            most = max(most, out)
            await asyncio.sleep(1)
            out -= 1
            return 1.0

        return rf.Weighted(judge, name=name, account="one key")

    rollouts = [rollout for i in range(10) for rollout in group(f"g{i}", "x")]
    score_all([make("a"), make("b")], rollouts, max_concurrency=3)
    assert most == 3


def test_each_weighted_reward_logs_its_own_verdicts() -> None:
    first, second = Logging(), Logging()
    score_all([rf.Weighted(first, name="first"), rf.Weighted(second, name="second")], group("g", "1", "2"))
    for judge in (first, second):
        ((_, _, results, _, uids),) = judge.logged
        assert sorted(result["score"] for result in results) == [1.0, 2.0]
        assert uids == ["g", "g"]
        assert judge.num_closed == 1


# -- reward_kwargs -----------------------------------------------------------------------------------------------------


def test_reward_kwargs_reach_a_function_with_every_call_and_a_class_once_when_it_is_built() -> None:
    async def function(solution_str: str, bonus: float) -> float:
        return float(solution_str) + bonus

    class Judge:
        def __init__(self, bonus: float) -> None:
            self.bonus = bonus

        async def compute_score(self, solution_str: str) -> float:
            return float(solution_str) + self.bonus

    assert score_one(function, "1", reward_kwargs={"bonus": 10.0}).value == 11.0
    assert score_one(Judge, "1", reward_kwargs={"bonus": 10.0}).value == 11.0
    parts = [rf.Weighted(Judge, name=name, reward_kwargs={"bonus": bonus}) for name, bonus in (("a", 1.0), ("b", 2.0))]
    assert dict(score_one(parts, "1").components) == {"a": 2.0, "b": 3.0}


def test_context_variables_of_the_submitter_reach_the_call_and_what_it_sets_stays_inside() -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    async def reward(solution_str: str) -> float:
        seen.append(tenant.get())
        tenant.set("somebody else")
        await asyncio.sleep(1)
        return 1.0

    def plain_reward(solution_str: str) -> float:
        seen.append(tenant.get())
        return 1.0

    async def main(reward: Any) -> None:
        async with rf.RewardAgent(reward, max_concurrency=1) as agent:
            tenant.set("me")
            ticket = agent.submit(group("g", "1", "2"))
            tenant.set("later")
            await ticket.all()
            assert tenant.get() == "later"

    clock.run(main(reward))
    clock.run(main(plain_reward))
    assert seen == ["me"] * 4


# -- lifecycle and order -----------------------------------------------------------------------------------------------


def test_submit_returns_at_once_and_calls_start_before_the_whole_batch_is_there() -> None:
    started: list[tuple[str, float]] = []

    async def reward(solution_str: str) -> float:
        started.append((solution_str, now()))
        await asyncio.sleep(100)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward) as agent:
            with agent.open() as ticket:
                for index in range(4):
                    ticket.submit(rf.Rollout(group_id="g", index=index, group_size=4, response=str(index)))
                    await asyncio.sleep(10)
            (one,) = await ticket.all()
            assert now() == 130.0
            assert one.is_complete

    clock.run(main())
    assert started == [("0", 0.0), ("1", 10.0), ("2", 20.0), ("3", 30.0)]


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
        async with rf.RewardAgent(coroutine) as agent:
            first, second = group("g", "1", "2")
            owner, later = agent.submit(second), agent.submit(first)
            assert await later.all() == []
            assert values(await owner.all()) == {"g": [1.0, 2.0]}

    clock.run(main())


def test_when_slots_are_scarce_calls_go_group_by_group_whatever_the_order_of_rollouts() -> None:
    order: list[str] = []

    async def reward(solution_str: str) -> float:
        order.append(solution_str)
        await asyncio.sleep(1)
        return 1.0

    groups = [group(f"g{number}", *[f"{number}.{index}" for index in range(3)]) for number in range(3)]
    shuffled = [one[index] for index in (2, 0, 1) for one in groups]
    score_all(reward, shuffled, max_concurrency=1)
    assert [place.split(".")[0] for place in order] == ["0", "0", "0", "1", "1", "1", "2", "2", "2"]


def test_the_oldest_step_goes_first_even_when_it_is_submitted_last() -> None:
    order: list[str] = []

    async def reward(solution_str: str) -> float:
        order.append(solution_str)
        await asyncio.sleep(1)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=1) as agent:
            late = agent.submit([rollout for i in range(3) for rollout in group(f"g{i}", "two", step=2)])
            await asyncio.sleep(0.5)
            middle = agent.submit([rollout for i in range(3) for rollout in group(f"g{i}", "one", step=1)])
            early = agent.submit([rollout for i in range(3) for rollout in group(f"g{i}", "zero", step=0)])
            for ticket in (late, middle, early):
                assert len(await ticket.all()) == 3

    clock.run(main())
    assert order == ["two", *["zero"] * 3, *["one"] * 3, *["two"] * 2]


def test_a_retry_of_an_older_step_goes_before_new_calls_of_a_younger_one() -> None:
    order: list[str] = []

    async def reward(solution_str: str) -> float:
        order.append(solution_str)
        await asyncio.sleep(10)
        if order.count("old") == 1 and solution_str == "old":
            raise rf.ServiceError("once")
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=1) as agent:
            old = agent.submit(group("old", "old", step=0))
            young = agent.submit([rollout for i in range(5) for rollout in group(f"y{i}", "young", step=1)])
            await old.all()
            await young.all()

    clock.run(main())
    assert order[:3] == ["old", "young", "old"]


def test_a_slow_call_of_one_step_delays_nothing_of_the_next() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(float(solution_str))
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=4, timeout_s=None) as agent:
            first = agent.submit([*group("a", "5000"), *group("b", "1"), *group("c", "1")])
            second = agent.submit([rollout for i in range(9) for rollout in group(f"g{i}", "1", step=1)])
            assert len(await second.all()) == 9
            assert now() == 1 + 3  # two of four slots for the first second, then three
            assert {one.group_id for one in await first.take(2)} == {"b", "c"}
            assert [one.group_id for one in await first.all()] == ["a"]
            assert now() == 5000.0

    clock.run(main())


def test_the_same_group_id_in_two_steps_names_two_groups() -> None:
    async def main() -> None:
        async with rf.RewardAgent(coroutine) as agent:
            ticket = agent.submit([*group("g", "1", "2", step=0), *group("g", "3", "4", step=1)])
            groups = await ticket.all()
            assert [(one.step, [reward.value for reward in one.rewards]) for one in groups] == [
                (0, [1.0, 2.0]),
                (1, [3.0, 4.0]),
            ]

    clock.run(main())


def test_no_more_calls_are_out_than_max_concurrency_and_slots_return_to_zero() -> None:
    out = most = 0

    async def reward(solution_str: str) -> float:
        nonlocal out, most
        out += 1
        most = max(most, out)
        try:
            await asyncio.sleep(float(solution_str) % 7 + 0.1)
        finally:
            out -= 1
        if solution_str.endswith("3"):
            raise rf.ServiceError("sometimes")
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=5, outage_share=None) as agent:
            await agent.submit([rollout for i in range(100) for rollout in group(f"g{i}", str(i))]).all()
            statistics = agent.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            assert statistics.verdicts.submitted == 100
            assert statistics.verdicts.scored == 90
            assert statistics.verdicts.failed == {"service": 10}
        assert most == 5
        assert out == 0

    clock.run(main())


def test_rollouts_can_be_submitted_from_several_threads() -> None:
    async def main() -> None:
        async with rf.RewardAgent(plain, max_concurrency=8) as agent:
            tickets: list[rf.Ticket] = []

            def produce(number: int) -> None:
                for i in range(20):
                    tickets.append(agent.submit(group(f"{number}-{i}", str(i), str(i + 1))))

            threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            groups = [one for ticket in tickets for one in await ticket.all()]
            assert len({one.group_id for one in groups}) == len(groups) == 80

    asyncio.run(main())


def test_an_empty_batch_is_complete_at_once() -> None:
    assert score_all(coroutine, []) == []


def test_an_agent_is_entered_once_and_takes_nothing_before_or_after() -> None:
    async def main() -> None:
        agent = rf.RewardAgent(coroutine)
        with pytest.raises(rf.AgentClosed):
            agent.submit(group("g", "1"))
        async with agent:
            pass
        with pytest.raises(rf.AgentClosed):
            agent.submit(group("g", "1"))
        with pytest.raises(rf.AgentClosed):
            await agent.__aenter__()

    clock.run(main())


# -- closing while calls are in flight ---------------------------------------------------------------------------------


def test_closing_cancels_what_is_out_and_every_rollout_still_gets_its_one_verdict() -> None:
    ended: list[str] = []

    async def reward(solution_str: str) -> float:
        try:
            await asyncio.sleep(float(solution_str))
        finally:
            ended.append(solution_str)
        return float(solution_str)

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=2) as agent:
            ticket = agent.submit([*group("a", "1", "1"), *group("b", "1", "500"), *group("c", "500")])
            await asyncio.sleep(10)
        assert now() <= 10 + 10
        groups = await ticket.all()
        assert values(groups) == {"a": [1.0, 1.0], "b": [1.0, None], "c": [None]}
        assert {reward.kind for one in groups for reward in one.rewards} == {None, "cancelled"}

    clock.run(main())
    assert sorted(ended) == ["1", "1", "1", "500", "500"]


@pytest.mark.parametrize("num_turns", range(6))
def test_closing_right_after_submit_starts_no_call_that_nobody_waits_for(num_turns: int) -> None:
    """However few turns of the loop lie between: what was started is cancelled, what was not is never sent."""
    started: list[str] = []
    ended: list[float] = []

    async def reward(solution_str: str) -> float:
        started.append(solution_str)
        try:
            await asyncio.sleep(50)
        finally:
            ended.append(now())
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, close_timeout_s=10) as agent:
            ticket = agent.submit(group("g", "1", "2"))
            for _ in range(num_turns):
                await asyncio.sleep(0)
        assert now() == 0.0, "closing waited for a call that nobody wants"
        (one,) = await ticket.all()
        assert [reward.kind for reward in one.rewards] == ["cancelled", "cancelled"]

    clock.run(main())
    assert ended == [0.0] * len(started)


def test_a_plain_reward_that_hangs_does_not_keep_the_agent_from_closing() -> None:
    release = threading.Event()
    entered = threading.Event()

    def reward(solution_str: str) -> float:
        entered.set()
        release.wait(30)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=2, close_timeout_s=2) as agent:
            ticket = agent.submit(group("g", "1"))
            await asyncio.to_thread(entered.wait, 10)
        (one,) = await ticket.all()
        assert one.rewards[0].kind == "cancelled"

    try:
        asyncio.run(main())
    finally:
        release.set()


@pytest.mark.parametrize("close_timeout_s", [0.5, 10.0])
def test_a_reward_that_swallows_its_cancellation_does_not_keep_the_agent_from_closing(close_timeout_s: float) -> None:
    async def reward(solution_str: str) -> float:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def main() -> None:
        async with rf.RewardAgent(reward, close_timeout_s=close_timeout_s) as agent:
            ticket = agent.submit(group("g", "1"))
            await asyncio.sleep(1)
        assert now() <= 1 + 2 * close_timeout_s + 2
        assert (await ticket.all())[0].rewards[0].kind == "cancelled"

    clock.run(main())


def test_cancelling_the_block_cancels_the_calls_and_stays_a_cancellation() -> None:
    ended: list[float] = []

    async def reward(solution_str: str) -> float:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(now())
        return 1.0

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), rf.RewardAgent(reward) as agent:
                await agent.submit(group("g", "1", "2")).all()
        assert ended == [5.0, 5.0]

    clock.run(main())


def test_what_a_cancelled_call_had_already_paid_is_in_the_journal_after_closing(tmp_path: Path) -> None:
    """`Closing the agent while calls are in flight cancels them, journals what was paid`."""

    async def reward(solution_str: str) -> float:
        rf.report_usage(cost_usd=0.25)
        await asyncio.sleep(1000)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, journal=tmp_path / "j.db") as agent:
            agent.submit(group("g", "1", "2"))
            await asyncio.sleep(1)
        async with rf.RewardAgent(reward, journal=tmp_path / "j.db") as agent:
            assert agent.statistics().ledger.spent_usd == pytest.approx(0.5)

    clock.run(main())


_paid_calls: list[str] = []


async def paid(solution_str: str) -> dict[str, Any]:
    _paid_calls.append(solution_str)
    await asyncio.sleep(float(solution_str))
    rf.report_usage(cost_usd=0.5)
    if solution_str == "2":
        raise ValueError("two")
    return {"score": float(solution_str), "explanation": "because", "tag": "x"}


def test_what_was_delivered_is_not_called_again_by_the_next_agent_on_the_same_journal(tmp_path: Path) -> None:
    batch = [*group("a", "1", "2"), *group("b", "500")]

    async def main() -> None:
        async with rf.RewardAgent(paid, journal=tmp_path / "j.db", timeout_s=None) as agent:
            ticket = agent.submit(batch)
            (first,) = await ticket.take(1)
        async with rf.RewardAgent(paid, journal=tmp_path / "j.db", timeout_s=None) as agent:
            again = await agent.submit(batch).all()
            assert agent.statistics().verdicts.cached == 2
        assert values(again) == {"a": [1.0, None], "b": [500.0]}
        assert again[0].rewards[1].kind == first.rewards[1].kind == "user_error"
        assert again[0].rewards[0].explanation == "because"
        assert again[0].rewards[0].extras["tag"] == "x"

    _paid_calls.clear()
    clock.run(main())
    assert _paid_calls == ["1", "2", "500", "500"]


def test_closing_gives_what_was_submitted_of_a_torn_group_its_verdict() -> None:
    async def main() -> None:
        async with rf.RewardAgent(coroutine) as agent:
            ticket = agent.submit(group("g", "1", "2")[0])
            await asyncio.sleep(5)
        (one,) = await ticket.all()
        assert [reward.value for reward in one.rewards] == [1.0]
        assert not one.is_complete

    clock.run(main())


def test_closing_gives_a_group_that_was_never_judged_failed_verdicts() -> None:
    judge = AsyncGroupJudge()

    async def main() -> None:
        async with rf.RewardAgent(judge) as agent:
            ticket = agent.submit(group("g", "1", "2", "3")[:2])
            await asyncio.sleep(5)
        (one,) = await ticket.all()
        assert [reward.kind for reward in one.rewards] == ["cancelled", "cancelled"]

    clock.run(main())


# -- asking once for the same content ----------------------------------------------------------------------------------


_asked: list[str] = []


async def deterministic(solution_str: str) -> float:
    _asked.append(solution_str)
    rf.report_usage(cost_usd=1.0)
    await asyncio.sleep(10)
    if solution_str == "flaky" and _asked.count("flaky") == 1:
        raise ValueError("the first time")
    return float(len(solution_str))


def test_with_reuse_of_content_equal_questions_are_asked_once_and_paid_once() -> None:
    async def main() -> None:
        _asked.clear()
        async with rf.RewardAgent(deterministic, reuse="content") as agent:
            first, second, third = await agent.submit([*group("a", "x"), *group("b", "x"), *group("c", "yy")]).all()
            assert [one.rewards[0].value for one in (first, second, third)] == [1.0, 1.0, 2.0]
            assert sorted(_asked) == ["x", "yy"]
            assert agent.statistics().ledger.spent_usd == 2.0
            assert sum(one.rewards[0].cost_usd for one in (first, second, third)) == 2.0
            assert agent.statistics().verdicts.cached == 1

    clock.run(main())


def test_with_reuse_of_content_a_failure_or_a_cancellation_of_one_is_not_shared_by_the_others() -> None:
    async def main() -> None:
        _asked.clear()
        async with rf.RewardAgent(deterministic, reuse="content") as agent:
            groups = await agent.submit([rollout for name in "abc" for rollout in group(name, "flaky")]).all()
            assert [one.rewards[0].value for one in groups] == [None, 5.0, 5.0]
            leader, follower = agent.submit(group("d", "zz", step=1)), agent.submit(group("e", "zz", step=1))
            await asyncio.sleep(1)
            leader.cancel()
            assert (await leader.all())[0].rewards[0].kind == "cancelled"
            assert (await follower.all())[0].rewards[0].value == 2.0

    clock.run(main())


def test_by_default_equal_questions_are_asked_for_every_sample() -> None:
    _asked.clear()
    score_all(deterministic, [*group("a", "x"), *group("b", "x")])
    assert _asked == ["x", "x"]


# -- bad input ---------------------------------------------------------------------------------------------------------


def refused(reward: Any, batch: Sequence[rf.Rollout] = (), **options: Any) -> str:
    """What the error says; nothing may have been sent."""
    with pytest.raises(rf.RewardflowError) as caught:
        score_all(reward, batch, **options)
    return str(caught.value)


def test_a_missing_file_is_named() -> None:
    assert "/no/such/judge.py" in refused("/no/such/judge.py:compute_score")


def test_a_name_that_is_not_there_is_refused_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("def compute_score(solution_str):\n    return 1.0\n")
    message = refused(f"{tmp_path}/judge.py:compute_scores")
    assert "'compute_scores'" in message
    assert "it has compute_score" in message


def test_a_class_that_cannot_be_built_is_refused_with_what_it_raised() -> None:
    class Judge(PlainJudge):
        def __init__(self) -> None:
            raise OSError("no API key")

    assert "no API key" in refused(Judge)


def test_a_signature_that_does_not_fit_is_refused_with_the_parameter_that_nothing_fills() -> None:
    def reward(solution_str: str, rubric: str) -> float:
        return 1.0

    assert "rubric" in refused(reward)
    assert "rubrik" in refused(reward, reward_kwargs={"rubric": "x", "rubrik": "y"})


@pytest.mark.parametrize("options", [{"workers": "process"}, {"max_concurrency": 2000}])
def test_what_cannot_travel_to_processes_is_refused_by_name(options: dict[str, Any]) -> None:
    lock = threading.Lock()

    def holds_a_lock(solution_str: str) -> float:
        with lock:
            return 1.0

    assert "holds_a_lock" in refused(holds_a_lock, group("g", "1"), **options)


def test_an_async_reward_is_not_sent_to_processes() -> None:
    assert "async" in refused(coroutine, group("g", "1"), workers="process")


def test_rewards_of_one_account_with_different_limits_are_refused() -> None:
    parts = [
        rf.Weighted(PlainJudge, name="a", account="one key", limits={"max_concurrency": 1}),
        rf.Weighted(PlainJudge, name="b", account="one key", limits={"max_concurrency": 2}),
    ]
    before = set(threading.enumerate())
    assert "one key" in refused(parts, group("g", "1"))
    assert left_over(before) == []


def test_a_judge_that_was_built_is_closed_also_when_the_agent_cannot_be_opened(tmp_path: Path) -> None:
    happened: list[str] = []

    class Judge(PlainJudge):
        def close(self) -> None:
            happened.append("closed")

    refused([rf.Weighted(Judge, name="a"), rf.Weighted("/no/such.py:judge", name="b")])
    assert happened == ["closed"]
    (tmp_path / "notes.txt").write_text("dear diary " * 100)
    refused(Judge, journal=tmp_path / "notes.txt")
    assert happened == ["closed", "closed"]


def test_reward_kwargs_beside_weighted_rewards_are_refused() -> None:
    assert "reward_kwargs" in refused([rf.Weighted(number)], reward_kwargs={"x": 1})


@pytest.mark.parametrize("reward", [[], [number], 3, None, [rf.Weighted(number), rf.Weighted(number)]])
def test_what_is_no_reward_is_refused(reward: Any) -> None:
    assert refused(reward)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_refused(weight: float) -> None:
    with pytest.raises(rf.InvalidInput, match="weight"):
        rf.Weighted(number, weight)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_concurrency", value) for value in (0, -1, 2.5, True, "many")],
        *[("rpm", value) for value in (0, -60, math.nan, "fast")],
        *[("tpm", value) for value in (0, -1)],
        *[("timeout_s", value) for value in (0, -1, math.nan, "60")],
        *[("verdict_timeout_s", value) for value in (0, -5)],
        *[("max_attempts", value) for value in (0, -1, 1.5)],
        *[("backoff_s", value) for value in (-1,)],
        *[("max_backoff_s", value) for value in (-1,)],
        *[("retry_budget", value) for value in (-0.1, math.nan)],
        *[("hedge_quantile", value) for value in (-0.5, 0, 1.5, math.nan)],
        *[("hedge_share", value) for value in (-0.5, 1.5)],
        *[("outage_share", value) for value in (-0.1, 2)],
        *[("outage_window", value) for value in (0, -20)],
        *[("outage_give_up_s", value) for value in (-1,)],
        *[("max_cost_usd", value) for value in (0, -1, math.nan)],
        *[("call_cost_usd", value) for value in (-0.01,)],
        *[("processes", value) for value in (0, -1)],
        *[("max_abandoned", value) for value in (-1,)],
        *[("workers", value) for value in ("threads", 4)],
        *[("reuse", value) for value in ("always",)],
        *[("store", value) for value in ("none",)],
        *[("incomplete_after_s", value) for value in (-1,)],
        *[("close_timeout_s", value) for value in (0, -1)],
        *[("endpoints", value) for value in ("https://one", ["a", "a"])],
    ],
)
def test_a_setting_that_breaks_its_rule_is_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(rf.InvalidInput) as caught:
        rf.RewardAgent(number, **{name: value})
    assert name in str(caught.value)
    assert str(value) in str(caught.value) or repr(value) in str(caught.value)


def test_a_bad_limit_of_one_weighted_reward_is_refused_before_anything_is_sent() -> None:
    assert "max_concurrency" in refused([rf.Weighted(number, limits={"max_concurrency": -1})], group("g", "1"))


def test_an_unknown_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(rf.InvalidInput, match="max_concurrency"):
        rf.RewardAgent(number, max_concurency=4)  # type: ignore[call-arg]


def never_called() -> tuple[list[str], Callable[..., Any]]:
    calls: list[str] = []

    async def reward(solution_str: str) -> float:
        calls.append(solution_str)
        return 1.0

    return calls, reward


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([*group("g", "1", "2"), *group("g", "3", "4")[1:]], ["'g'", "index=1"]),
        ([group("g", "1", "2")[0], group("g", "1", "2", "3")[1]], ["'g'", "2", "3"]),
        ([*group("g", "1"), "not a rollout"], ["str"]),
        ([*group("g", "1"), None], ["NoneType"]),
    ],
)
def test_a_bad_batch_is_refused_whole_and_nothing_of_it_is_sent(bad: list[Any], words: list[str]) -> None:
    calls, reward = never_called()

    async def main() -> None:
        async with rf.RewardAgent(reward) as agent:
            with pytest.raises(rf.InvalidInput) as caught:
                agent.submit([*group("fine", "9"), *bad])
            assert all(word in str(caught.value) for word in words)
            await asyncio.sleep(10)
            assert calls == []
            assert agent.statistics().verdicts.submitted == 0
            assert values(await agent.submit(group("g", "1", "2")).all()) == {"g": [1.0, 1.0]}

    clock.run(main())


def test_an_index_that_is_already_there_is_refused_and_the_group_goes_on() -> None:
    async def main() -> None:
        async with rf.RewardAgent(coroutine) as agent:
            first, second = group("g", "1", "2")
            ticket = agent.submit(first)
            with pytest.raises(rf.InvalidInput, match="index=0"):
                agent.submit([second, rf.Rollout(group_id="g", index=0, group_size=2, response="9")])
            assert ticket.missing == {"g": (1,)}
            agent.submit(second)
            assert values(await ticket.all()) == {"g": [1.0, 2.0]}

    clock.run(main())


@pytest.mark.parametrize(("index", "size"), [(2, 2), (-1, 2), (0, 0), (5, 1)])
def test_an_index_outside_its_group_is_refused(index: int, size: int) -> None:
    with pytest.raises(rf.InvalidInput, match=f"index={index}"):
        rf.Rollout(group_id="g", index=index, group_size=size, response="x")


def test_a_file_that_is_not_a_journal_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    calls, reward = never_called()
    path = tmp_path / "notes.txt"
    path.write_text("dear diary " * 100)
    with pytest.raises(NotAJournal, match=r"notes\.txt"):
        score_all(reward, group("g", "1"), journal=path)
    assert calls == []
    assert path.read_text() == "dear diary " * 100


def test_somebody_elses_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    calls, reward = never_called()
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NotAJournal, match=r"other\.db"):
        score_all(reward, group("g", "1"), journal=path)
    assert (calls, path.read_bytes()) == ([], before)


def test_a_journal_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    calls, reward = never_called()
    path = tmp_path / "j.db"
    score_all(number, group("g", "1"), journal=path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()
    with pytest.raises(NewerJournal, match="9999"):
        score_all(reward, group("g", "1"), journal=path)
    assert calls == []


def test_a_journal_that_somebody_holds_is_refused(tmp_path: Path) -> None:
    calls, reward = never_called()
    path = tmp_path / "j.db"
    score_all(number, group("g", "1"), journal=path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(JournalLocked, match=r"j\.db"):
            score_all(reward, group("g", "1"), journal=path)
    finally:
        holder.close()
    assert calls == []


def test_on_a_full_disk_verdicts_are_delivered_once_and_the_error_is_loud(tmp_path: Path) -> None:
    """A limit on file size stands in for the full disk: both make the write fail."""
    script = f"""
import asyncio, logging, resource, signal, sys
import rewardflow as rf
from rewardflow.errors import JournalWriteFailed

logging.basicConfig(level=logging.WARNING)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
calls = []

async def reward(solution_str):
    calls.append(solution_str)
    return {{"score": 1.0, "explanation": "x" * 10_000}}

async def main():
    delivered = []
    try:
        async with rf.RewardAgent(reward, journal={str(tmp_path / "j.db")!r}) as agent:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            for step in range(4):
                batch = [rf.Rollout(group_id=str(i), response="x", step=step) for i in range(50)]
                async with asyncio.timeout(20):
                    async for group in agent.submit(batch):
                        delivered.append((group.step, group.group_id, group.rewards[0].value))
    except JournalWriteFailed as error:
        print("raised", flush=True)
    assert len(delivered) == len(set(delivered)) == 200, len(delivered)
    assert {{value for _, _, value in delivered}} == {{1.0}}
    assert len(calls) == 200
    print("delivered", flush=True)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "delivered" in done.stdout
    assert "raised" in done.stdout or "ERROR" in done.stderr
    assert "j.db" in done.stderr + done.stdout


def test_a_group_whose_post_processing_is_cut_off_by_closing_is_delivered_all_the_same() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return 1.0

        async def post_process_scores(self, scores: list[float]) -> list[float]:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000)

    async def main() -> None:
        async with rf.RewardAgent(Judge, close_timeout_s=1) as agent:
            ticket = agent.submit(group("g", "x"))
            await asyncio.sleep(1)
        assert asyncio.get_running_loop().time() < 10
        async with asyncio.timeout(100):
            (one,) = await ticket.all()
        assert one.num_failed == 1

    clock.run(main())


def test_hooks_that_queue_for_a_thread_do_not_run_out_of_time_there() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return 1.0

        def post_process_scores(self, scores: list[float]) -> list[float]:
            time.sleep(0.02)
            return scores

    async def main() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(Judge, timeout_s=0.3) as agent:
            return await agent.submit(rollout for number in range(200) for rollout in group(str(number), "x")).all()

    assert all(one.num_failed == 0 for one in asyncio.run(main()))


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


@pytest.mark.parametrize("field", [{"step": None}, {"group_id": 7}, {"response": None}, {"extra_info": [1]}])
def test_a_rollout_of_wrong_types_is_refused_by_name(field: dict[str, Any]) -> None:
    (name,) = field
    with pytest.raises(rf.InvalidInput, match=name):
        rf.Rollout(**({"group_id": "g", "response": "x"} | field))


def test_a_batch_that_cannot_be_read_to_its_end_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with rf.RewardAgent(number) as agent:
            with pytest.raises(rf.InvalidInput):
                agent.submit([*group("g", "1", "2"), "not a rollout"])
            assert agent.statistics().verdicts.pending_groups == 0

    clock.run(main())


def test_a_reward_that_lacks_something_says_so_before_anything_is_sent() -> None:
    class Judge:
        def check(self) -> None:
            raise rf.InvalidInput("the environment variable JUDGE_KEY must be set")

        async def compute_score(self, solution_str: str) -> float:
            return 1.0

    class Odd(Judge):
        async def check(self) -> None:
            raise KeyError("x")

    async def open_with(reward: Any) -> None:
        async with rf.RewardAgent(reward):
            pass

    with pytest.raises(rf.InvalidInput, match="JUDGE_KEY"):
        clock.run(open_with(Judge))
    with pytest.raises(rf.RewardLoadError, match="cannot be used: KeyError"):
        clock.run(open_with(Odd))


def test_an_agent_is_left_on_the_loop_it_was_entered_on_and_can_be_after_a_mistake() -> None:
    agent = rf.RewardAgent(lambda solution_str: 1.0)

    async def leave() -> None:
        await agent.__aexit__(None, None, None)

    with asyncio.Runner() as home:
        home.run(agent.__aenter__())
        with asyncio.Runner() as elsewhere, pytest.raises(rf.InvalidInput, match="entered on"):
            elsewhere.run(leave())
        assert agent.is_open
        home.run(leave())
    assert not agent.is_open


def test_a_fork_of_the_agents_process_is_told_to_open_its_own() -> None:
    async def judge(solution_str: str) -> float:
        return 1.0

    async def main() -> int:
        async with rf.RewardAgent(judge) as agent:  # without threads, which Python warns of when it forks
            child = os.fork()
            if child == 0:
                try:
                    agent.submit(group("g", "a"))
                except rf.AgentClosed as error:
                    os._exit(7 if "forked" in str(error) else 8)
                finally:
                    os._exit(9)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            return os.waitstatus_to_exitcode(status)

    assert asyncio.run(main()) == 7
