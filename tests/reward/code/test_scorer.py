"""A reward gets the home it needs: the loop, threads, or processes."""

from __future__ import annotations

import pytest

import rewardflow as rf
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.process_pool import ProcessPool
from rewardflow.reward.code.scorer import make_worker_pool
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.code.thread_pool import ThreadPool
from rewardflow.reward.settings import LimitSettings


async def waits(solution_str: str) -> float:
    return 1.0


def blocks(solution_str: str) -> float:
    return 1.0


def home(reward: object, **limits: object) -> object:
    source = RewardSource.of(reward)
    return make_worker_pool(source, load_reward(source), LimitSettings(**limits))


def test_async_rewards_run_on_the_loop() -> None:
    assert home(waits) is None


def test_plain_rewards_run_in_as_many_threads_as_there_are_slots() -> None:
    workers = home(blocks, max_concurrency=1024)
    assert isinstance(workers, ThreadPool)
    assert workers.statistics().size == 1024


def test_above_1024_slots_plain_rewards_run_in_processes_of_threads() -> None:
    workers = home(blocks, max_concurrency=3000)
    assert isinstance(workers, ProcessPool)
    assert workers.statistics().size >= 3000


def test_processes_can_be_asked_for() -> None:
    workers = home(blocks, workers="process", processes=3)
    assert isinstance(workers, ProcessPool)
    assert workers.statistics().size == 3


def test_processes_are_not_for_async_rewards() -> None:
    with pytest.raises(rf.InvalidInput, match="workers='process' is for plain functions"):
        home(waits, workers="process")
