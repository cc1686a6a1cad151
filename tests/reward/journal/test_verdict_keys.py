"""Equal keys mean the same reward and inputs; everything that can change the verdict changes the key."""

from __future__ import annotations

import dataclasses

import pytest

import rewardflow as rf
from rewardflow.reward.journal.verdict_keys import verdict_keys

ROLLOUT = rf.Rollout(group_id="g", response="4", prompt="2+2", ground_truth="4", data_source="sums", step=3)


def key(rollout: rf.Rollout = ROLLOUT, *, run: str | None = "run", identity: str = "judge") -> bytes:
    return verdict_keys(identity, (rollout,), run=run)[0]


@pytest.mark.parametrize(
    "change",
    [
        {"response": "5"},
        {"prompt": "2+3"},
        {"ground_truth": "5"},
        {"data_source": "other"},
        {"extra_info": {"difficulty": 1}},
        {"messages": [{"role": "user", "content": "2+2"}]},
    ],
)
def test_any_input_changes_both_kinds_of_key(change: dict[str, object]) -> None:
    changed = dataclasses.replace(ROLLOUT, **change)
    assert key(changed) != key()
    assert key(changed, run=None) != key(run=None)


@pytest.mark.parametrize("change", [{"step": 4}, {"group_id": "h"}])
def test_the_place_in_the_run_changes_the_sample_key_only(change: dict[str, object]) -> None:
    moved = dataclasses.replace(ROLLOUT, **change)
    assert key(moved) != key()
    assert key(moved, run=None) == key(run=None)


def test_run_and_reward_are_part_of_it() -> None:
    assert key(run="a") != key(run="b")
    assert key(identity="judge v2") != key()


def test_what_the_trainer_adds_is_not_part_of_it() -> None:
    assert key(dataclasses.replace(ROLLOUT, policy_version=7, token_ids=[1, 2], log_probs=[0.1, 0.2])) == key()


def test_members_of_a_group_call_have_different_keys_that_depend_on_all_of_it() -> None:
    first = rf.Rollout(group_id="g", index=0, group_size=2, response="a")
    second = rf.Rollout(group_id="g", index=1, group_size=2, response="a")
    other = rf.Rollout(group_id="g", index=1, group_size=2, response="b")
    for run in ("run", None):
        keys = verdict_keys("judge", (first, second), run=run)
        assert len(set(keys)) == 2
        assert verdict_keys("judge", (first, other), run=run)[0] != keys[0]


def test_odd_values_give_the_same_key_in_every_process() -> None:
    odd = dataclasses.replace(
        ROLLOUT, response="broken \ud800 surrogate", extra_info={"thing": object(), "big": 2**80, "set": {"b", "a"}}
    )
    again = dataclasses.replace(odd, extra_info={"set": {"a", "b"}, "big": 2**80, "thing": object()})
    assert len(key(odd)) == 16
    plain = dataclasses.replace(ROLLOUT, extra_info={"thing": object(), "set": {"b", "a"}})
    assert key(plain) == key(dataclasses.replace(ROLLOUT, extra_info={"set": {"a", "b"}, "thing": object()}))
    assert key(odd) == key(odd)
    assert key(again) == key(again)
