"""Bugs that users of other systems met in their reward calls, one test for each, named after where it was seen."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agent_at_work import left_over, now, sleeper, with_agent
from rollouts import group
from scoring import score_groups, values

import rewardflow as rf
from rewardflow import clock

# -- the original recipe -----------------------------------------------------------------------------------------------


def test_original_recipe_out_of_order_groups_keep_their_rewards() -> None:
    """It sorted rewards but not lengths, and so put them on the wrong token when groups finished out of order."""
    drawn = random.Random(7)

    async def reward(solution_str: str) -> float:
        await asyncio.sleep(drawn.uniform(1, 40))
        return float(len(solution_str))

    async def use(agent: rf.RewardAgent) -> None:
        rollouts = [
            rf.Rollout(group_id=f"g{i}", index=j, group_size=5, response="x" * (i * 5 + j), token_ids=[0] * (i * 5 + j))
            for i in range(64)
            for j in range(5)
        ]
        drawn.shuffle(rollouts)
        arrived = [one async for one in agent.submit(rollouts)]
        assert [one.group_id for one in arrived] != sorted(one.group_id for one in arrived)
        for one in arrived:
            assert [rollout.index for rollout in one.rollouts] == list(range(5))
            for rollout, verdict in zip(one.rollouts, one.rewards, strict=True):
                assert verdict.value == len(rollout.response) == len(rollout.token_ids or ())

    with_agent(use, reward, max_concurrency=32)


def test_original_recipe_one_exception_in_the_users_function_does_not_hang_training() -> None:
    def reward(solution_str: str) -> float:
        if solution_str == "bad":
            raise RuntimeError("the user's bug")
        return 1.0

    assert values(score_groups(reward, [*group("a", "x", "bad"), *group("b", "x", "x")], max_concurrency=4)) == {
        "a": [1.0, None],
        "b": [1.0, 1.0],
    }


def test_original_recipe_calls_of_the_next_batch_start_before_the_last_batchs_slowest_ends() -> None:
    starts: dict[str, float] = {}

    async def reward(solution_str: str, extra_info: dict[str, Any]) -> float:
        starts[extra_info["group_uid"]] = now()
        await asyncio.sleep(float(solution_str))
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        first = agent.submit([*group("slowest", "1000"), *group("a", "1"), *group("b", "1")])
        second = agent.submit([*group("c", "1", step=1), *group("d", "1", step=1)])
        assert len(await second.all()) == 2
        assert now() == 2.0
        assert starts == {"slowest": 0.0, "a": 0.0, "b": 0.0, "c": 1.0, "d": 1.0}
        await first.all()

    with_agent(use, reward, max_concurrency=3, timeout_s=None)


def test_original_recipe_no_polling_delays_a_group() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit([*group("a", "0.125", "3.375"), *group("b", "1.0625")])
        assert [(one.group_id, now()) async for one in ticket] == [("b", 1.0625), ("a", 3.375)]

    with_agent(use, sleeper)


def test_original_recipe_asking_for_a_number_that_fits_no_group_size_loses_no_reward() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit([rollout for i in range(10) for rollout in group(f"g{i}", *["1"] * (i % 4 + 1))])
        taken = [await ticket.take(count) for count in (3, 3, 3, 3, 3)]
        assert [len(some) for some in taken] == [3, 3, 3, 1, 0]
        rewards = [reward for some in taken for one in some for reward in one.rewards]
        assert len(rewards) == sum(i % 4 + 1 for i in range(10))
        assert all(one.is_complete for some in taken for one in some)

    with_agent(use, sleeper)


def test_original_recipe_the_agent_is_shut_down_with_its_threads_and_its_reward() -> None:
    closed: list[bool] = []

    class Judge:
        def compute_score(self, solution_str: str) -> float:
            return 1.0

        def close(self) -> None:
            closed.append(True)

    before = set(threading.enumerate())
    assert [one.value for one in rf.score(group("g", "x", "y"), Judge, max_concurrency=64)] == [1.0, 1.0]
    assert left_over(before) == []
    assert closed == [True]


def test_original_recipe_rewards_start_before_the_whole_batch_is_generated() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        arrived: dict[str, float] = {}
        with agent.open() as ticket:
            for i in range(8):
                ticket.submit(group(f"g{i}", "10"))
                await asyncio.sleep(100)
                assert ticket.num_ready == i + 1
        async for one in ticket:
            arrived[one.group_id] = now()
        assert len(arrived) == 8
        assert set(arrived.values()) == {800.0}

    with_agent(use, sleeper)


def test_original_recipe_5120_delays_take_no_longer_than_list_scheduling_does() -> None:
    """Its workload, at full size and full delays: 1024 groups of 5, 1 to 40 s each, 256 slots."""
    drawn = random.Random(0)
    delays_s = [drawn.uniform(1, 40) for _ in range(5120)]

    async def use(agent: rf.RewardAgent) -> None:
        rollouts = [
            rf.Rollout(group_id=str(i // 5), index=i % 5, group_size=5, response=str(delay_s))
            for i, delay_s in enumerate(delays_s)
        ]
        ticket = agent.submit(rollouts)
        first_quarter = await ticket.take(256)
        quarter_s = now()
        assert len(first_quarter) + len(await ticket.all()) == 1024
        ends = [0.0] * 256
        for delay_s in delays_s:  # the oldest call goes to the slot that is free first
            ends[ends.index(min(ends))] += delay_s
        assert now() == pytest.approx(max(ends), rel=0.01)
        assert quarter_s <= 0.4 * now()

    with_agent(use, sleeper, max_concurrency=256)


# -- verl --------------------------------------------------------------------------------------------------------------


def test_verl_naive_one_raising_call_does_not_lose_the_batch() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        return 1.0 / float(solution_str)

    scores = values(score_groups(reward, [*group("a", "1", "0", "2"), *group("b", "4", "5")]))
    assert scores == {"a": [1.0, None, 0.5], "b": [0.25, 0.2]}


def test_verl_naive_one_hanging_call_returns() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(math.inf if solution_str == "hang" else 1)
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        (one,) = await agent.submit(group("g", "x", "hang", "x")).all()
        assert [reward.value for reward in one.rewards] == [1.0, None, 1.0]
        assert one.rewards[1].kind == "timeout"
        assert now() <= 3 * (60 + 1)

    with_agent(use, reward, timeout_s=60)


def test_verl_naive_a_blocking_function_gets_as_many_threads_as_max_concurrency() -> None:
    """It gave min(32, cpus + 4)."""
    all_there = threading.Barrier(100)

    def reward(solution_str: str) -> float:
        all_there.wait(20)
        return 1.0

    rollouts = [rollout for i in range(100) for rollout in group(f"g{i}", "x")]
    rewards = rf.score(rollouts, reward, max_concurrency=100)
    assert {reward.value for reward in rewards} == {1.0}


def test_verl_rate_limited_a_failing_first_sample_is_only_that() -> None:
    """It raised KeyError, because the first sample decided which extra keys all of them had."""

    async def reward(solution_str: str) -> dict[str, Any]:
        if solution_str == "first":
            raise rf.ServiceError("down", retryable=False)
        return {"score": 1.0, "acc": 1.0}

    async def use(agent: rf.RewardAgent) -> None:
        (one,) = await agent.submit(group("g", "first", "second", "third")).all()
        assert [reward.value for reward in one.rewards] == [None, 1.0, 1.0]
        assert [dict(reward.extras) for reward in one.rewards] == [{}, {"acc": 1.0}, {"acc": 1.0}]

    with_agent(use, reward)


@pytest.mark.parametrize(
    "error", [TimeoutError(), rf.ServiceError("x"), rf.RateLimited(), rf.Unparsable(), ValueError("x")]
)
def test_verl_rate_limited_a_failure_is_never_a_zero(error: Exception) -> None:
    class Judge:
        def __init__(self) -> None:
            self.logged: list[Any] = []

        async def compute_score(self, solution_str: str) -> float:
            raise error

        def log_verdicts(self, verdicts: list[dict[str, Any]]) -> None:
            self.logged += [verdict["score"] for verdict in verdicts]

    judge = Judge()
    assert values(score_groups(judge, group("g", "x", "y"), max_attempts=2, outage_share=None)) == {"g": [None, None]}
    assert judge.logged == [None, None]


COUNTING = """
import os, time

def compute_score(solution_str, extra_info):
    folder = extra_info["folder"]
    mine = os.path.join(folder, f"{os.getpid()}-{extra_info['group_uid']}")
    open(mine, "w").close()
    out = len(os.listdir(folder))
    time.sleep(0.01)
    os.remove(mine)
    return float(out)
"""


def test_verl_limiter_is_one_for_all_workers_and_not_one_for_each(tmp_path: Path) -> None:
    """Eight worker processes let eight times the limit through. Here the limit holds over all processes together."""
    (tmp_path / "judge.py").write_text(COUNTING)
    folder = tmp_path / "out"
    folder.mkdir()
    rollouts = [rollout for i in range(60) for rollout in group(f"g{i}", "x", extra_info={"folder": str(folder)})]
    options: dict[str, Any] = {"workers": "process", "processes": 4}
    rewards = rf.score(rollouts, f"{tmp_path}/judge.py", max_concurrency=2, **options)
    assert {reward.value for reward in rewards} <= {1.0, 2.0}, [reward.error for reward in rewards]


def test_verl_and_others_extra_keys_that_differ_between_samples_neither_crash_nor_misalign() -> None:
    async def reward(solution_str: str) -> dict[str, Any]:
        return {"score": float(solution_str), f"only_{solution_str}": solution_str, "common": solution_str}

    async def use(agent: rf.RewardAgent) -> None:
        (one,) = await agent.submit(group("g", "1", "2", "3")).all()
        for text, verdict in zip("123", one.rewards, strict=True):
            assert verdict.value == float(text)
            assert dict(verdict.extras) == {f"only_{text}": text, "common": text}

    with_agent(use, reward)


# -- TRL, OpenRLHF, slime, ROLL ----------------------------------------------------------------------------------------


def test_trl_async_groups_are_scored_at_the_same_time() -> None:
    """It scored one group at a time."""

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit([rollout for i in range(16) for rollout in group(f"g{i}", "10", "10")]).all()
        assert now() == 10.0

    with_agent(use, sleeper)


def test_trl_weighted_sum_with_a_failed_judge_is_failed_not_smaller() -> None:
    async def judge(solution_str: str) -> float:
        raise rf.ServiceError("down", retryable=False)

    async def rule(solution_str: str) -> float:
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        (one,) = await agent.submit(group("g", "x")).all()
        assert one.rewards[0].value is None
        assert dict(one.rewards[0].components) == {"rule": 1.0, "judge": None}

    with_agent(use, [rf.Weighted(rule, 1.0, name="rule"), rf.Weighted(judge, 1.0, name="judge")])


@pytest.mark.parametrize("max_concurrency", [1, 2, 8, 64])
def test_openrlhf_with_n_endpoints_every_endpoint_gets_calls(max_concurrency: int) -> None:
    """A sample went only to the first. However few calls are out at a time, the work is shared."""
    calls: Counter[str | None] = Counter()

    async def reward(solution_str: str) -> float:
        call = rf.current_call()
        assert call is not None
        calls[call.endpoint] += 1
        await asyncio.sleep(1)
        return 1.0

    rollouts = [rollout for i in range(64) for rollout in group(f"g{i}", "x")]
    score_groups(reward, rollouts, endpoints=["a", "b", "c", "d"], max_concurrency=max_concurrency)
    assert min(calls[name] for name in "abcd") >= 8, calls


def test_slime_a_reward_exception_does_not_lose_the_group() -> None:
    async def reward(solution_str: str) -> float:
        raise KeyError("nobody catches this")

    assert values(score_groups(reward, [*group("a", "x", "y"), *group("b", "z")])) == {"a": [None, None], "b": [None]}


def test_roll_judge_calls_of_one_worker_are_not_serial() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            await asyncio.sleep(10)
            return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit([rollout for i in range(50) for rollout in group(f"g{i}", "x")]).all()
        assert now() == 10.0

    with_agent(use, Judge, max_concurrency=50)


# -- NeMo --------------------------------------------------------------------------------------------------------------


def test_nemo_gym_1172_failed_calls_of_1280_enter_training_as_failures_and_not_as_zeros() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(0.1)
        if int(solution_str) < 1172:
            raise rf.ServiceError("overloaded", retryable=False)
        return 0.0

    async def use(agent: rf.RewardAgent) -> None:
        groups = await agent.submit(group_of_ones(1280)).all()
        verdicts = [one.rewards[0] for one in groups]
        assert Counter(verdict.value for verdict in verdicts) == {None: 1172, 0.0: 108}
        assert agent.statistics().verdicts.failed == {"service": 1172}
        assert agent.statistics().verdicts.scored == 108

    def group_of_ones(count: int) -> list[rf.Rollout]:
        return [rollout for i in range(count) for rollout in group(f"g{i}", str(i))]

    with_agent(use, reward, outage_share=None)


def test_nemo_rl_a_failed_call_does_not_move_the_groups_mean() -> None:
    """What post-processing and training get for it is no number, so nothing can be averaged in by mistake."""
    seen: list[list[float]] = []

    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return float(solution_str)

        def post_process_scores(self, scores: list[float]) -> list[float]:
            seen.append(list(scores))
            mean = statistics.fmean(score for score in scores if not math.isnan(score))
            return [score - mean for score in scores]

    assert values(score_groups(Judge, group("g", "1", "oops", "3"))) == {"g": [-1.0, None, 1.0]}
    assert math.isnan(seen[0][1])


_judged: list[str] = []


async def remembered(solution_str: str) -> float:
    _judged.append(solution_str)
    await asyncio.sleep(float(solution_str))
    return float(solution_str)


def test_nemo_rl_and_openrlhf_a_restart_skips_no_prompt_and_drops_no_buffered_rollout(tmp_path: Path) -> None:
    rollouts = [rollout for i in range(1, 41) for rollout in group(f"g{i}", str(i), str(i + 0.5))]

    async def run(until_s: float) -> list[rf.ScoredGroup]:
        options: dict[str, Any] = {"journal": tmp_path / "run.db", "max_concurrency": 8, "timeout_s": None}
        async with rf.RewardAgent(remembered, **options) as agent:
            ticket = agent.submit(rollouts)
            await asyncio.sleep(until_s)
            if until_s < 1e6:
                return []
            return await ticket.all()

    _judged.clear()
    clock.run(run(30))
    num_in_first_run = len(_judged)
    assert 8 < num_in_first_run < 80
    clock.run(run(60))
    groups = clock.run(run(1e6))
    assert {one.group_id: [reward.value for reward in one.rewards] for one in groups} == {
        f"g{i}": [float(i), i + 0.5] for i in range(1, 41)
    }
    assert len(_judged) <= 80 + 2 * 8, "only what was in flight at a restart is asked again"


KILLED = """
import asyncio, os, signal, sys
import rewardflow as rf

async def reward(solution_str):
    with open(sys.argv[2], "a") as calls:
        calls.write(solution_str + "\\n")
    await asyncio.sleep(0.005)
    return float(solution_str)

async def main():
    rollouts = [rf.Rollout(group_id=str(i), response=str(i)) for i in range(300)]
    async with rf.RewardAgent(reward, journal=sys.argv[1], max_concurrency=4) as agent:
        count = 0
        async for group in agent.submit(rollouts):
            assert group.rewards[0].value == float(group.group_id)
            print(group.group_id, flush=True)
            count += 1
            if count == int(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_users_of_nemo_rl_and_openrlhf_a_killed_run_pays_for_nothing_twice_but_what_was_in_flight(
    tmp_path: Path,
) -> None:
    script = tmp_path / "run.py"
    script.write_text(KILLED)

    def run(kill_after: int) -> tuple[int, list[str]]:
        command = [sys.executable, str(script), str(tmp_path / "run.db"), str(tmp_path / "calls"), str(kill_after)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.split()

    code, delivered = run(150)
    assert (code, len(delivered)) == (-9, 150)
    code, again = run(10_000)
    assert (code, len(set(again))) == (0, 300)
    calls = Counter((tmp_path / "calls").read_text().split())
    assert len(calls) == 300
    assert [name for name in delivered if calls[name] > 1] == [], "delivered, and called again all the same"
    assert sum(calls.values()) <= 300 + 4


# -- AReaL and others --------------------------------------------------------------------------------------------------


def test_areal_timed_out_call_does_not_keep_its_worker() -> None:
    release = threading.Event()

    def reward(solution_str: str) -> float:
        if solution_str == "hang":
            release.wait(30)
        return 1.0

    rollouts = [*group("a", "hang", "hang", "hang", "hang"), *group("b", "x", "x", "x", "x")]
    try:
        rewards = rf.score(rollouts, reward, max_concurrency=2, timeout_s=0.1, max_attempts=1)
    finally:
        release.set()
    assert [reward.kind for reward in rewards] == ["timeout"] * 4 + [None] * 4


HANGING = """
import os, time

def compute_score(solution_str):
    if solution_str == "hang":
        time.sleep(600)
    return float(os.getpid())
"""


def test_areal_timed_out_call_does_not_keep_its_process(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(HANGING)
    options: dict[str, Any] = {"workers": "process", "processes": 1, "max_concurrency": 1}
    rollouts = group("a", "x", "hang", "x")
    rewards = rf.score(rollouts, f"{tmp_path}/judge.py", timeout_s=1, max_attempts=1, **options)
    assert [reward.kind for reward in rewards] == [None, "timeout", None]
    assert rewards[0].value != rewards[2].value, "another process"


def test_others_time_sleep_inside_a_coroutine_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def sleeps_on_the_loop(solution_str: str) -> float:
        time.sleep(0.6)  # noqa: ASYNC251  the bug in question
        return 1.0

    with caplog.at_level(logging.WARNING, "rewardflow"):
        assert values(score_groups(sleeps_on_the_loop, group("g", "x"))) == {"g": [1.0]}
    assert "sleeps_on_the_loop" in caplog.text


def test_others_groups_with_the_same_prompt_do_not_merge() -> None:
    rollouts = [*group("a", "1", "2", prompt="What is 2+2?"), *group("b", "3", "4", prompt="What is 2+2?")]
    drawn = random.Random(1)
    drawn.shuffle(rollouts)
    assert values(score_groups(sleeper, rollouts)) == {"a": [1.0, 2.0], "b": [3.0, 4.0]}


def test_others_equal_responses_in_one_group_each_have_their_own_verdict() -> None:
    calls = 0

    async def reward(solution_str: str) -> float:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1)
        return float(calls)

    (scores,) = values(score_groups(reward, group("g", "same", "same", "same"), max_concurrency=1)).values()
    assert scores == [1.0, 2.0, 3.0]


def test_tinker_cookbook_822_a_slowly_judged_group_is_not_thrown_away() -> None:
    async def use(agent: rf.RewardAgent) -> None:
        slow = agent.submit(group("slow", "50000"))
        for step in range(1, 21):
            assert len(await agent.submit(group("fast", "100", step=step)).all()) == 1
        (one,) = await slow.all()
        assert one.rewards[0].value == 50000.0

    with_agent(use, sleeper, timeout_s=None)


def test_verl_6673_a_hang_inside_a_hook_does_not_stop_the_verdicts() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return 1.0

        async def post_process_scores(self, scores: list[float]) -> list[float]:
            await asyncio.sleep(math.inf)
            return scores

    async def use(agent: rf.RewardAgent) -> None:
        (one,) = await agent.submit(group("g", "x")).all()
        assert one.rewards[0].value is None
        assert "post_process_scores" in (one.rewards[0].error or "")
        assert now() <= 60

    with_agent(use, Judge, timeout_s=60)
