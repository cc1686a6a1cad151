"""The plain function over lists in other processes, and over restarts; tests/reward/test_blocking.py has its calls."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served import served

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.reward.group_names import GroupNames

JUDGE = """
calls = []

async def compute_score(response, ground_truth=None):
    calls.append(response)
    return float(response == ground_truth)
"""


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "judge.py").write_text(JUDGE)
    monkeypatch.chdir(tmp_path)
    return "judge.py:compute_score"


def at(step: int) -> Any:
    """What TRL passes as `trainer_state`."""
    return SimpleNamespace(global_step=step)


def judged(function: Any, results: Any) -> None:
    os.chdir("/")
    results.put(function(prompts=["p", "p"], completions=["4", "5"], ground_truth=["4", "4"]))
    function.close()


def test_a_spawned_process_gets_a_copy_that_opens_an_agent_of_its_own(judge: str) -> None:
    """In another working directory, although the reward's file was named relative to this one."""
    function = rf.RewardAgent(judge, max_concurrency=2, journal="run.db").as_batch_function(group_size=2)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=judged, args=(function, results))
    child.start()
    assert results.get(timeout=300) == [1.0, 0.0]
    child.join()
    assert child.exitcode == 0
    assert Path("run.db").exists()


def test_a_copy_keeps_rewards_weights_limits_and_group_size(judge: str) -> None:
    agent = rf.RewardAgent(
        [rf.Weighted(judge, weight=2.0, name="right"), rf.Weighted(judge, weight=0.5, name="also")],
        max_concurrency=3,
        timeout_s=7.0,
        max_cost_usd=1.0,
        call_cost_usd=0.1,
    )
    function = agent.as_batch_function(group_size=2, failed=-1.0)
    copy = pickle.loads(pickle.dumps(function))
    assert (copy.__name__, copy.group_size) == (function.__name__, 2)
    assert copy._agent.shown_settings() == agent.shown_settings()
    try:
        assert copy(prompts=["p", "p"], completions=["4", "5"], ground_truth=["4", "4"]) == [2.5, 0.0]
    finally:
        copy.close()


def test_the_copy_of_an_open_function_is_not_open(judge: str) -> None:
    function = rf.RewardAgent(judge).as_batch_function()
    function(prompts=["p"], completions=["4"])
    try:
        copy = pickle.loads(pickle.dumps(function))
        assert not copy._agent.is_open
    finally:
        function.close()


calls: list[str] = []  # not in a closure, whose values would belong to the reward's identity


async def number(response: str) -> float:
    calls.append(response)
    return float(response)


def started(reward: Any, journal: Path) -> Any:
    """The function as each start of a run makes it."""
    return rf.RewardAgent(reward, journal=journal).as_batch_function(group_size=2)


@pytest.mark.parametrize("steps", [True, False], ids=["as TRL calls it", "without steps"])
def test_a_restarted_run_pays_for_no_saved_verdict_again(tmp_path: Path, steps: bool) -> None:
    calls.clear()
    batches = [["1", "2", "3", "4"], ["5", "6", "7", "8"]]
    for attempt in range(2):
        function = started(number, tmp_path / "run.db")
        for step, completions in enumerate(batches):
            columns = {"trainer_state": at(step)} if steps else {}
            numbers = function(prompts=["p", "p", "q", "q"], completions=completions, **columns)
            assert numbers == [float(one) for one in completions]
        function.close()
        assert len(calls) == 8, f"start {attempt}"


def test_a_run_resumed_at_a_checkpoint_finds_the_verdicts_of_that_step(tmp_path: Path) -> None:
    """An evaluation came before the step in the first start, and does not come again in the second."""
    calls.clear()
    function = started(number, tmp_path / "run.db")
    function(prompts=["p", "p"], completions=["1", "2"], trainer_state=at(0))
    function(prompts=["held out", "held out"], completions=["7", "8"], trainer_state=at(1))
    function(prompts=["q", "q"], completions=["3", "4"], trainer_state=at(1))
    function.close()
    calls.clear()
    function = started(number, tmp_path / "run.db")
    assert function(prompts=["q", "q"], completions=["3", "4"], trainer_state=at(1)) == [3.0, 4.0]
    assert calls == []
    assert function(prompts=["q", "q"], completions=["3", "9"], trainer_state=at(2)) == [3.0, 9.0]
    assert sorted(calls) == ["3", "9"]  # another step: a judge with temperature is asked again
    function.close()


def test_equal_prompts_of_one_step_stay_apart_and_of_another_step_too(tmp_path: Path) -> None:
    groups: list[str] = []

    async def reward(response: str, extra_info: Any) -> float:
        groups.append(extra_info["group_uid"])
        return 1.0

    function = rf.RewardAgent(reward, journal=tmp_path / "run.db").as_batch_function()
    for step in (0, 0, 1):
        function(prompts=["p", "p"], completions=["1", "1"], trainer_state=at(step))
    function.close()
    assert len(groups) == 6
    assert len(set(groups[:4])) == 4


def test_an_evaluation_of_an_earlier_step_in_between_does_not_repeat_names() -> None:
    """A trainer asks about step 2 ahead of its turn, evaluates after step 1 and again after step 2."""
    names = GroupNames()
    ends = [names.name(step, "p").rpartition("-")[2] for step in (2, 2, 1, 2)]
    assert ends == ["0", "1", "0", "2"]


def test_a_column_named_step_is_data_and_a_number_is_the_step(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def reward(response: str, extra_info: Any) -> float:
        seen.append(extra_info.get("step"))
        return 1.0

    function = rf.RewardAgent(reward).as_batch_function()
    function(prompts=["p"], completions=["1"], step=[5])
    function(prompts=["p"], completions=["1"], step=5)
    function.close()
    assert seen == [5, None]


@pytest.mark.parametrize("named_by", ["argument", "environment"])
def test_a_server_that_is_named_judges_in_place_of_this_process(named_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served() as asker:
            if named_by == "environment":
                monkeypatch.setenv("REWARDFLOW_URL", asker.url)
            agent = rf.RewardAgent("never/opened.py:judge", run="job")
            function = agent.as_batch_function(group_size=2, server=asker.url if named_by == "argument" else None)
            copy = pickle.loads(pickle.dumps(function))
            for one in (function, copy):
                numbers = await asyncio.to_thread(one, prompts=["p", "p"], completions=["a", "bb"], step=1)
                assert numbers == [1.0, 2.0]
                await asyncio.to_thread(one.close)
            assert not agent.is_open

    asyncio.run(main())


@pytest.mark.parametrize(("version", "trains_on_zeros"), [("1.5.1", True), ("0.29.0", True), ("1.6.0", False)])
def test_inside_a_trl_that_counts_none_as_zero_a_failure_is_an_error(
    monkeypatch: pytest.MonkeyPatch, version: str, trains_on_zeros: bool
) -> None:
    async def failing(solution_str: str) -> float:
        raise ValueError("no")

    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace())
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    function = rf.RewardAgent(failing, max_attempts=1).as_batch_function()
    if trains_on_zeros:
        with pytest.raises(InvalidInput, match=f"TRL {version} counts None as 0"):
            function(prompts=["q"], completions=["a"])
    else:
        assert function(prompts=["q"], completions=["a"]) == [None]
    function.close()
