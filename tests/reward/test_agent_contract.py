"""What users' rewards may look like and may return, through the agent."""

from __future__ import annotations

import asyncio
import contextlib
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollouts import group
from scoring import score_groups, score_one, values
from simple_rewards import (
    AsyncGroupJudge,
    AsyncJudge,
    GroupJudge,
    PlainJudge,
    async_number,
    plain_number,
)

import rewardflow as rf
from rewardflow import clock

# -- the forms a reward may take ---------------------------------------------------------------------------------------


def batch(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
    return [float(one) for one in solution_strs]


async def async_batch(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
    await asyncio.sleep(1)
    return [float(one) for one in solution_strs]


class BatchJudge:
    def compute_score(self, data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
        return [float(one) for one in solution_strs]


class CallableJudge:
    async def __call__(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        return float(solution_str)


FORMS = [
    *[plain_number, async_number, batch, async_batch],
    *[PlainJudge, AsyncJudge, BatchJudge, CallableJudge, GroupJudge, AsyncGroupJudge],
    *[PlainJudge(), AsyncJudge(), GroupJudge()],
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: getattr(form, "__name__", f"{type(form).__name__}()"))
def test_every_form_of_reward_scores_groups_of_different_sizes(form: Any) -> None:
    rollouts = [*group("a", "1", "2", "3"), *group("b", "4"), *group("c", "5", "6")]
    groups = score_groups(form, rollouts)
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
    (one,) = score_groups(f"{tmp_path}/verl_reward.py:compute_score", rollouts, **options)
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

    score_groups(reward, group("q17", "x", "y", extra_info={"mine": 1}))
    assert seen == [{"mine": 1, "group_uid": "q17", "group_size": 2}] * 2


def test_what_one_call_writes_into_extra_info_no_other_call_and_no_rollout_sees() -> None:
    async def reward(solution_str: str, extra_info: dict[str, Any]) -> float:
        extra_info["count"] = extra_info.get("count", 0) + 1
        return float(extra_info["count"])

    shared: dict[str, Any] = {}
    (one,) = score_groups(reward, group("g", "x", "y", "z", extra_info=shared))
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

    (one,) = score_groups(reward, group("g", "fine", "odd", "fine"), max_concurrency=2)
    assert [reward.value for reward in one.rewards] == [1.0, None, 1.0]


def test_a_reward_record_with_odd_fields_costs_nobody_a_verdict() -> None:
    odd: dict[str, Any] = {"extras": None, "components": None, "cost_usd": None, "tokens": "12"}

    async def reward(solution_str: str) -> rf.Reward:
        return rf.Reward(value=1.0, **(odd if solution_str == "odd" else {}))

    parts = [rf.Weighted(reward, name="a"), rf.Weighted(reward, name="b")]
    (one,) = score_groups(parts, group("g", "fine", "odd", "fine"))
    assert [reward.value for reward in one.rewards] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), StopIteration()])
def test_even_an_odd_exception_of_a_coroutine_fails_that_call_alone(raised: BaseException) -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        if solution_str == "odd":
            raise raised
        return 1.0

    (one,) = score_groups(reward, group("g", "fine", "odd", "fine"), max_concurrency=1)
    assert [reward.value for reward in one.rewards] == [1.0, None, 1.0]


def test_awaiting_a_task_that_somebody_cancelled_is_an_error_of_the_reward_and_stops_nothing() -> None:
    async def reward(solution_str: str) -> float:
        task = asyncio.ensure_future(asyncio.sleep(100))
        asyncio.get_running_loop().call_later(1, task.cancel)
        if solution_str == "odd":
            await task
        task.cancel()
        return 1.0

    (one,) = score_groups(reward, group("g", "odd", "fine", "odd", "fine"), max_concurrency=1)
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

    (one,) = score_groups(reward, group("g", "x", "y", "z"), max_concurrency=2)
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

    (one,) = score_groups(reward, group("g", "x", "y", "z"), max_concurrency=2)
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

    (one,) = score_groups(reward, group("g", "x", "y"))
    assert [reward.value for reward in one.rewards] == [None, None]


def test_one_bad_result_of_a_batch_reward_fails_its_rollout_alone() -> None:
    async def reward(solution_strs: list[str]) -> list[Any]:
        return [1.0, None, {"score": 3.0, "only_here": 1}]

    (one,) = score_groups(reward, group("g", "x", "y", "z"))
    assert [reward.value for reward in one.rewards] == [1.0, None, 3.0]


def test_a_batch_reward_is_called_once_per_group_with_aligned_lists() -> None:
    calls: list[tuple[Any, ...]] = []

    async def reward(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
        calls.append((data_sources, solution_strs, ground_truths, [info["group_uid"] for info in extra_infos]))
        return [0.0] * len(solution_strs)

    score_groups(reward, [*group("a", "1", "2", ground_truth=9, data_source="d"), *group("b", "3", ground_truth=8)])
    assert sorted(calls) == [([""], ["3"], [8], ["b"]), (["d", "d"], ["1", "2"], [9, 9], ["a", "a"])]
