"""Records are frozen and consistent, and refuse impossible values."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

import rewardflow as rf
from rewardflow.types import EMPTY, scored_reward


def test_status_follows_from_the_value() -> None:
    assert rf.Reward(value=0.0).status == "scored"
    assert rf.Reward().status == "failed"
    assert rf.Reward(value=1.0, status="scored").is_scored


@pytest.mark.parametrize(
    "fields",
    [
        {"value": 1.0, "status": "failed"},
        {"value": None, "status": "scored"},
        {"value": float("nan")},
        {"value": float("inf")},
        {"kind": "bad luck"},
    ],
)
def test_a_reward_that_contradicts_itself_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(rf.InvalidInput):
        rf.Reward(**fields)


@pytest.mark.parametrize(("index", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_an_index_lies_in_its_group(index: int, size: int) -> None:
    with pytest.raises(rf.InvalidInput, match=r"index must lie in \[0, group_size\)"):
        rf.Rollout(group_id="g", response="", index=index, group_size=size)


def test_the_messages_of_a_rollout_are_several() -> None:
    with pytest.raises(rf.InvalidInput, match="messages of a rollout must be Iterable, got 5"):
        rf.Rollout(group_id="g", response="", messages=5)  # type: ignore[arg-type]
    assert rf.Rollout(group_id="g", response="", messages=None).messages == ()  # type: ignore[arg-type]


def test_records_are_frozen_and_travel() -> None:
    rollout = rf.Rollout(group_id="g", response="x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        rollout.response = "y"
    assert pickle.loads(pickle.dumps(rollout)) == rollout
    assert pickle.loads(pickle.dumps(rf.Reward(value=1.0))) == rf.Reward(value=1.0)


def test_the_empty_mapping_is_a_mapping_of_nothing() -> None:
    assert dict(EMPTY) == {}
    assert len(EMPTY) == 0
    assert "x" not in EMPTY
    with pytest.raises(KeyError):
        EMPTY["x"]


def test_a_group_counts_its_failures_and_knows_whether_it_is_complete() -> None:
    rollouts = tuple(rf.Rollout(group_id="g", response="", index=i, group_size=3) for i in range(2))
    group = rf.ScoredGroup(
        group_id="g", step=0, group_size=3, rollouts=rollouts, rewards=(rf.Reward(value=1.0), rf.Reward())
    )
    assert group.num_failed == 1
    assert not group.is_complete


@pytest.mark.parametrize("step", [2**63, -(2**63), 2**200])
def test_a_step_that_the_journal_cannot_hold_is_refused_before_anything_is_paid(step: int) -> None:
    with pytest.raises(rf.InvalidInput, match=rf"step of a rollout must fit 64 bits, got {step:#x}"):
        rf.Rollout(group_id="q", response="r", step=step)
    with pytest.raises(rf.InvalidInput, match="group_size of a rollout must fit 64 bits, got 0x"):
        rf.Rollout(group_id="q", response="r", group_size=abs(step))
    assert rf.Rollout(group_id="q", response="r", step=2**63 - 1).step == 2**63 - 1


def test_a_reward_that_the_agent_makes_quickly_is_like_any_other() -> None:
    made, usual = scored_reward(0.25), rf.Reward(value=0.25)
    assert type(made) is rf.Reward
    assert made == usual
    assert repr(made) == repr(usual)
    assert dataclasses.asdict(made) == dataclasses.asdict(usual)
    assert pickle.loads(pickle.dumps(made)) == usual
    assert dataclasses.replace(made, value=0.5) == rf.Reward(value=0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.value = 1.0  # type: ignore[misc]
