"""Sets of prompts and their fingerprints."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rewardflow.data.prompt_set import PromptList
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt

PROMPT = Prompt(uid="0", text="a", ground_truth="1", data_source="s", extra_info={"k": 1})


def test_equal_prompts_have_equal_fingerprints_whatever_held_them() -> None:
    as_lists = Prompt(uid="0", messages=[{"role": "user", "content": "a"}], extra_info={"a": 1, "b": 2})
    as_tuples = Prompt(uid="0", messages=({"content": "a", "role": "user"},), extra_info={"b": 2, "a": 1})
    assert PromptList([as_lists]).fingerprint == PromptList((as_tuples,)).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"text": "b"},
        {"ground_truth": 1},
        {"data_source": ""},
        {"extra_info": {"k": 2}},
        {"messages": [{"role": "user", "content": "a"}]},
    ],
)
def test_a_change_anywhere_changes_the_fingerprint(change: dict[str, Any]) -> None:
    other = dataclasses.replace(PROMPT, **change)
    assert PromptList([PROMPT]).fingerprint["content"] != PromptList([other]).fingerprint["content"]


def test_the_order_of_prompts_is_part_of_the_fingerprint() -> None:
    def of(*texts: str) -> object:
        return PromptList([Prompt(uid=str(i), text=text) for i, text in enumerate(texts)]).fingerprint

    assert of("a", "b") != of("b", "a")
    assert of("a", "b") != of("a\nb")


def test_uids_must_be_the_numbers() -> None:
    with pytest.raises(InvalidInput, match="the uid of prompt 1 must be '1', got '0'"):
        PromptList([PROMPT, PROMPT])
    with pytest.raises(InvalidInput, match="at least one"):
        PromptList([])
