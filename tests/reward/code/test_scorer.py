"""A reward runs where it needs to: on the loop, in threads, or in processes."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import rewardflow as rf
from rewardflow.reward.code.contract import load_reward, with_own_values
from rewardflow.reward.code.processes.process_pool import ProcessPool
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


# -- reward code may write into the values of its rollout, and the record stays as it was --


def nested_rollout() -> rf.Rollout:
    return rf.Rollout(
        group_id="q",
        response="x",
        extra_info={"hints": ["a"], "meta": {"tags": {"k": [1]}}, "n": 1, "array": np.zeros(2)},
        ground_truth={"answers": ["4"], "array": np.zeros(2)},
        messages=[{"role": "user", "content": [{"type": "text", "text": "2+2?"}]}],
    )


def shown(rollout: rf.Rollout) -> str:
    """Returns all values as text, because arrays cannot be compared by `==`."""
    return repr([getattr(rollout, field.name) for field in fields(rollout)])


def spoil(info: Any) -> None:
    assert info["array"].tolist() == [0, 0], "an earlier call has written here"
    info["array"][0] = 99
    assert (info["hints"], info["meta"]["tags"]) == (["a"], {"k": [1]}), "an earlier call has written here"
    info["hints"].append("spoilt")
    info["meta"]["tags"]["k"].append(2)
    info["meta"]["new"] = True


async def spoils_its_argument(extra_info: dict[str, Any]) -> float:
    spoil(extra_info)
    return 1.0


async def spoils_its_rollout(rollout: rf.Rollout) -> float:
    spoil(rollout.extra_info)
    spoil_others(rollout.ground_truth, rollout.messages)
    return 1.0


def spoil_others(truth: Any, messages: Any) -> None:
    assert (truth["answers"], len(messages[0]["content"])) == (["4"], 1), "an earlier call has written here"
    truth["answers"].append("spoilt")
    truth["array"][0] = 99
    messages[0]["content"].append("spoilt")
    messages.append({"role": "user", "content": "spoilt"})


async def spoils_its_other_arguments(ground_truth: Any, messages: Any) -> float:
    spoil_others(ground_truth, messages)
    return 1.0


async def spoils_its_group(rollouts: tuple[rf.Rollout, ...]) -> list[float]:
    spoil(rollouts[0].extra_info)
    return [1.0]


async def spoils_its_call(response: str) -> float:
    call = rf.current_call()
    assert call is not None
    spoil(call.rollouts[0].extra_info)
    return 1.0


async def spoils_in_every_attempt(extra_info: dict[str, Any]) -> float:
    spoil(extra_info)
    call = rf.current_call()
    if call is not None and call.attempt == 1:
        raise rf.ServiceError("again")
    return 1.0


def spoils_in_a_thread(extra_info: dict[str, Any]) -> float:
    spoil(extra_info)
    return 1.0


class SpoilsInAHook:
    def decide_locally(self, rollout: rf.Rollout) -> None:
        spoil(rollout.extra_info)

    async def compute_score(self, extra_info: dict[str, Any]) -> float:
        spoil(extra_info)
        return 1.0


class SpoilsInAQuickHook(SpoilsInAHook):
    decides_quickly = True


@pytest.mark.parametrize(
    "reward",
    [
        spoils_its_argument,
        spoils_its_rollout,
        spoils_its_other_arguments,
        spoils_its_group,
        spoils_its_call,
        spoils_in_every_attempt,
        spoils_in_a_thread,
        SpoilsInAHook,
        SpoilsInAQuickHook,
        [rf.Weighted(spoils_its_argument, 0.5, name="a"), rf.Weighted(spoils_in_a_thread, 0.5, name="b")],
    ],
)
def test_what_a_reward_writes_into_its_rollout_reaches_no_record_and_no_other_call(reward: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal.sqlite"
    for is_cached in (False, True):  # a changed record would have another key in the journal
        rollout = nested_rollout()
        (verdict,) = rf.score([rollout], reward, max_concurrency=2, backoff_s=0.001, journal=journal, store="full")
        assert (verdict.value, verdict.error, verdict.cached) == (1.0, None, is_cached)
        assert shown(rollout) == shown(nested_rollout())
    assert b"spoilt" not in journal.read_bytes()


def test_copies_of_nested_extra_info_keep_their_classes_and_a_flat_rollout_is_not_copied() -> None:
    flat = rf.Rollout(group_id="q", response="x", extra_info={"n": 1, "text": "t", "none": None})
    assert with_own_values(flat) is flat
    counts: defaultdict[str, list[int]] = defaultdict(list, {"a": [1]})
    given = {"counts": counts, "frozen": MappingProxyType({"a": [1]}), "pair": ([1], 2), "seen": {1}}
    copied = with_own_values(rf.Rollout(group_id="q", response="x", extra_info=given)).extra_info
    assert copied == given
    assert [type(value) for value in copied.values()] == [defaultdict, MappingProxyType, tuple, set]
    assert copied["counts"]["new"] == []
    assert all(copied[name] is not given[name] for name in given)
    assert copied["counts"]["a"] is not counts["a"]


def test_arrays_are_copied_with_the_lists_and_dicts_inside_them() -> None:
    """A column of lists in a parquet file arrives as an array of objects."""
    inner = np.empty(2, dtype=object)
    inner[0], inner[1] = {"a": [1]}, np.zeros(2)
    given = rf.Rollout(group_id="q", response="x", ground_truth=inner, extra_info={"table": np.zeros((2, 2))})
    own = with_own_values(given)
    own.ground_truth[0]["a"].append(2)
    own.ground_truth[1][0] = 7
    own.extra_info["table"][0, 0] = 7
    assert inner[0] == {"a": [1]}
    assert inner[1].tolist() == [0, 0]
    assert given.extra_info["table"].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("truth", [None, "4", 4, 4.0, True])
def test_a_rollout_of_texts_and_numbers_is_passed_as_it_is(truth: Any) -> None:
    rollout = rf.Rollout(group_id="q", response="x", prompt="2+2?", ground_truth=truth, extra_info={"n": 1})
    assert with_own_values(rollout) is rollout
