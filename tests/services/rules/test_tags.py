"""Tags are there once, in order, and the first mistake is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts import rollout

from rewardflow.errors import InvalidInput
from rewardflow.services.rules import Format


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        ("<think>a</think><answer>b</answer>", None),
        (" <think>a</think>\n<answer>b</answer>\n", None),
        ("<answer>b</answer>", "<think> must be there once, found 0 times"),
        ("<think>a<answer>b</answer>", "</think> must be there once, found 0 times"),
        ("<think>a</think><think>a</think><answer>b</answer>", "<think> must be there once, found 2 times"),
        ("<answer>b</answer><think>a</think>", "text before <think>: '<answer>b</answer>'"),
        ("<think>a<answer>b</answer></think>", "<answer> must come after what is before it in think, answer"),
        ("</think>a<think><answer>b</answer>", "</think> comes before <think>"),
        ("<think> </think><answer>b</answer>", "<think> is empty"),
        ("Sure! <think>a</think><answer>b</answer>", "text before <think>: 'Sure!'"),
        ("<think>a</think><answer>b</answer> Bye", "text after </answer>: 'Bye'"),
    ],
)
def test_tags_must_be_there_once_and_in_order(response: str, problem: str | None) -> None:
    reward = Format().compute_score(rollout(response))
    assert reward.value == (1.0 if problem is None else 0.0)
    assert reward.explanation == (problem or "think, answer: each once, in order")


def test_text_outside_and_a_tag_that_the_prompt_opened_may_be_allowed() -> None:
    assert Format(text_outside=True).compute_score(rollout("Hm <think>a</think> so <answer>b</answer>!")).value == 1.0
    opened = rollout("a</think><answer>b</answer>")
    assert Format().compute_score(opened).value == 0.0
    assert Format(opened_in_prompt=True).compute_score(opened).value == 1.0


@pytest.mark.parametrize("tags", [(), ("a", "a"), ("<a>",), ("",)])
def test_tags_are_distinct_names(tags: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="tags must be"):
        Format(tags=tags)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x"]), max_size=8))
def test_only_one_order_of_tags_is_well_formed(pieces: list[str]) -> None:
    tags = "".join(piece for piece in pieces if piece != "x")
    reward = Format(text_outside=True).compute_score(rollout("".join(pieces)))
    assert reward.value == 0.0 or tags == "<think></think><answer></answer>"
