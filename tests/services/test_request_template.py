"""Requests: every placeholder is known, and what fills it stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.services.request_template import check_template, conversation, fill, fill_batch, prompt_text


@given(st.text(), st.text())
def test_filling_keeps_every_text_as_it_is(prompt: str, response: str) -> None:
    rollout = rf.Rollout(group_id="q", prompt=prompt, response=response)
    assert fill("{prompt}|{{}}|{response}", rollout) == f"{prompt}|{{}}|{response}"
    assert fill_batch({"a": "{response}", "b": "c"}, [rollout, rollout]) == {"a": [response] * 2, "b": "c"}


@pytest.mark.parametrize("template", ["{answer}", {"a": "{answer}"}, [{"b": ["x {answer}"]}]])
def test_a_placeholder_that_nothing_fills_is_refused(template: Any) -> None:
    with pytest.raises(InvalidInput, match=r"got \{answer\}"):
        check_template(template)


def test_a_text_that_is_one_placeholder_keeps_the_type_of_its_value() -> None:
    rollout = rf.Rollout(group_id="q", response="4", ground_truth={"x": [1]}, step=3)
    assert fill({"truth": "{ground_truth}", "told": "it is {ground_truth}", "step": "{step}"}, rollout) == {
        "truth": {"x": [1]},
        "told": 'it is {"x":[1]}',
        "step": 3,
    }


def test_messages_stand_in_for_a_prompt_and_the_other_way_round() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    by_messages = rf.Rollout(group_id="q", response="4", messages=messages)
    assert prompt_text(by_messages) == "Be brief.\n\n2+2?"
    assert conversation(by_messages) == [*messages, {"role": "assistant", "content": "4"}]
    by_prompt = rf.Rollout(group_id="q", response="4", prompt="2+2?")
    assert conversation(by_prompt) == [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
