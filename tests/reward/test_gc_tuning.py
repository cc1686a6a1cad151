"""The collector runs less often while calls are in flight, and as before afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import rewardflow as rf
from rewardflow.reward.gc_tuning import fewer_collections


def threshold() -> int:
    return gc.get_threshold()[0]


def test_overlapping_agents_keep_the_larger_setting_and_the_last_restores_the_interpreters() -> None:
    before = gc.get_threshold()
    with fewer_collections(10_000):
        assert threshold() == 50_000
        with fewer_collections(20_000):
            assert threshold() == 100_000
        assert threshold() == 50_000
        assert gc.isenabled()
    assert gc.get_threshold() == before


def test_a_small_agent_changes_nothing() -> None:
    before = gc.get_threshold()
    with fewer_collections(8):
        assert gc.get_threshold() == before


def test_an_agent_restores_the_setting_when_it_closes_also_by_an_error() -> None:
    before = gc.get_threshold()

    async def main() -> None:
        async with rf.RewardAgent(lambda solution_str: 1.0, max_concurrency=1000):
            assert threshold() == 5_000
            raise KeyError

    with contextlib.suppress(KeyError):
        asyncio.run(main())
    assert gc.get_threshold() == before


def test_a_collector_that_was_switched_off_stays_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with fewer_collections(10_000):
            assert threshold() == 0
    finally:
        gc.set_threshold(*before)
