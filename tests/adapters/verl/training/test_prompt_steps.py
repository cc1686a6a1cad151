"""Which prompts belong to which step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.training.prompt_steps import OpenSteps, restored_steps
from rewardflow.errors import FlowError


def test_steps_leave_in_the_order_they_came() -> None:
    steps = OpenSteps()
    steps.open(3, ["a", "b"])
    steps.open(4, ["c"])
    assert steps.uids == ["a", "b", "c"]
    assert steps.take(3).uids == ("a", "b")
    assert steps.take(4).uids == ("c",)


def test_a_step_out_of_order_is_a_mistake() -> None:
    steps = OpenSteps()
    steps.open(3, ["a"])
    with pytest.raises(FlowError, match="got step 5 after 3"):
        steps.open(5, ["b"])
    with pytest.raises(FlowError, match="got step 4, and the first open one is 3"):
        steps.take(4)


@given(st.integers(0, 30), st.integers(1, 7), st.integers(1, 5))
def test_restored_prompts_are_each_in_one_step_and_in_order(count: int, per_step: int, first: int) -> None:
    uids = [f"u{number}" for number in range(count)]
    steps = restored_steps(uids, first=first, per_step=per_step)
    assert [uid for step in steps for uid in step.uids] == uids
    assert [step.step for step in steps] == list(range(first, first + len(steps)))
    assert all(len(step.uids) == per_step for step in steps[:-1])
