"""A reward runs where it needs to: on the loop, in threads, or in processes."""

from __future__ import annotations

import math

import pytest

import rewardflow as rf
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.process_pool import ProcessPool
from rewardflow.reward.code.scorer import Scorer, make_worker_pool
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.code.thread_pool import ThreadPool
from rewardflow.reward.settings import LimitSettings


async def waits(solution_str: str) -> float:
    return 1.0


def blocks(solution_str: str) -> float:
    return 1.0


def pool_for(reward: object, **limits: object) -> object:
    source = RewardSource.of(reward)
    return make_worker_pool(source, load_reward(source), LimitSettings(**limits))


def test_async_rewards_run_on_the_loop() -> None:
    assert pool_for(waits) is None


def test_plain_rewards_run_in_as_many_threads_as_there_are_slots() -> None:
    workers = pool_for(blocks, max_concurrency=1024)
    assert isinstance(workers, ThreadPool)
    assert workers.statistics().size == 1024


def test_above_1024_slots_plain_rewards_run_in_processes_of_threads() -> None:
    workers = pool_for(blocks, max_concurrency=3000)
    assert isinstance(workers, ProcessPool)
    assert workers.statistics().size >= 3000


def test_processes_can_be_asked_for() -> None:
    workers = pool_for(blocks, workers="process", processes=3)
    assert isinstance(workers, ProcessPool)
    assert workers.statistics().size == 3


def test_processes_are_not_for_async_rewards() -> None:
    with pytest.raises(rf.InvalidInput, match="workers='process' is for plain functions"):
        pool_for(waits, workers="process")


def test_without_an_estimate_of_the_reward_a_call_uses_as_many_tokens_as_usual() -> None:
    class Judge:
        def compute_score(self, solution_str: str) -> float:
            return 1.0

        def estimate_tokens(self, rollout: rf.Rollout) -> int:
            return len(rollout.response)

    rollouts = [rf.Rollout(group_id="q", response="four"), rf.Rollout(group_id="q", response="4")]
    estimating = Scorer("judge", load_reward(RewardSource.of(Judge)), None)
    plain = Scorer("plain", load_reward(RewardSource.of(blocks)), None)
    assert estimating.estimate_tokens(rollouts, usual=800) == 5
    assert plain.estimate_tokens(rollouts, usual=800) == 800


def test_a_reward_on_the_loop_has_no_limit_of_its_own_and_one_in_threads_has() -> None:
    on_loop = Scorer("waits", load_reward(RewardSource.of(waits)), None)
    in_threads = Scorer("blocks", load_reward(RewardSource.of(blocks)), pool_for(blocks, max_concurrency=16))
    assert (on_loop.num_usable, in_threads.num_usable) == (math.inf, 16)
    assert (on_loop.num_stuck, in_threads.num_stuck) == (0, 0)
