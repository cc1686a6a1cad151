"""The records of the flow."""

from __future__ import annotations

from array import array
from dataclasses import replace

from rewardflow.flow.records import (
    TRUNCATED,
    GroupRequest,
    Precomputed,
    Prompt,
    Sample,
    is_truncated,
    num_sampled_tokens,
    num_tokens,
)
from rewardflow.types import Reward, Rollout


def test_a_record_of_each_kind_can_be_told_from_its_fields() -> None:
    request = GroupRequest(number=7, step=1, prompt=Prompt(uid="a"), group_size=2)
    assert request.group_id == "7"
    assert Rollout(group_id="7", response="x").token_ids is None
    failed = Sample(
        rollout=Rollout(group_id="7", response="x"),
        reward=Reward(kind="timeout"),
        advantage=0.0,
        precomputed=Precomputed(),
    )
    assert not failed.is_scored


def test_the_last_rollout_of_a_group_with_a_baseline_is_the_baseline() -> None:
    prompt = Prompt(uid="a", extra_info={"level": 3})
    request = GroupRequest(number=0, step=0, prompt=prompt, group_size=3, has_baseline=True)
    assert [request.is_baseline(index) for index in range(3)] == [False, False, True]
    assert request.extra_info_of(0) == {"level": 3, "greedy": False}
    assert request.extra_info_of(2) == {"level": 3, "greedy": True}
    plain = GroupRequest(number=0, step=0, prompt=prompt, group_size=3)
    assert not plain.is_baseline(2)
    assert plain.extra_info_of(2) == {"level": 3}


def test_tokens_are_counted_in_arrays_and_in_lists() -> None:
    for mask in (array("b", [0, 1, 1, 0, 1]), array("l", [0, 1, 1, 0, 1]), [0, 1, 1, 0, 1]):
        rollout = Rollout(group_id="0", response="", token_ids=[5, 6, 7, 8, 9], response_mask=mask)
        assert (num_sampled_tokens(rollout), num_tokens(rollout)) == (3, 5)
    bare = Rollout(group_id="0", response="")
    assert (num_sampled_tokens(bare), num_tokens(bare)) == (0, 0)


def test_a_masked_sample_is_scored_and_not_trained_on() -> None:
    rollout = Rollout(group_id="7", response="x", extra_info={TRUNCATED: True})
    assert is_truncated(rollout)
    scored = Sample(rollout=rollout, reward=Reward(value=1.0), advantage=0.5, precomputed=Precomputed())
    masked = replace(scored, is_masked=True)
    assert (scored.why_not, masked.why_not, masked.is_scored) == (None, "truncated", True)
    assert replace(masked, reward=Reward(kind="timeout")).why_not == "failed"
