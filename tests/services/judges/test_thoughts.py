"""What a judge thinks is told from what it says, by its tags."""

from __future__ import annotations

import time

import pytest

from rewardflow.services.judges.thoughts import end_of_first_thought, is_thinking, outside_thoughts

OPEN = [
    *("<think>", "<THINK>", "<think >", "< think>", "<think\n>", '<think type="long">', "<thinking>", "<thought>"),
    *("<thoughts>", "<reasoning>", "<reflection>", "<analysis>", "<scratchpad>", "<seed:think>", "[THINK]"),
    *("\u25c1think\u25b7", "<|begin_of_thought|>", "<|channel|>analysis<|message|>", "<|channel|>commentary to=x"),
]
CLOSE = {
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|channel|>analysis<|message|>": "<|end|>",
    "<|channel|>commentary to=x": "<|start|>assistant<|channel|>final<|message|>",
    '<think type="long">': "</think>",
    "<think\n>": "</think >",
    "< think>": "< / think>",
    "[THINK]": "[/THINK]",
}


def closing(tag: str) -> str:
    return CLOSE.get(tag, tag.replace("<", "</").replace(" ", ""))


@pytest.mark.parametrize("tag", OPEN)
def test_a_thought_is_open_until_its_own_tag_closes_it_as_often_as_it_was_opened(tag: str) -> None:
    assert is_thinking(f"{tag}so")
    assert is_thinking(f"Well. {tag}so")
    assert not is_thinking(f"{tag}so{closing(tag)}")
    if "channel" not in tag:  # a message is no part of another one
        assert is_thinking(f"{tag}a{tag}b{closing(tag)}")
        assert not is_thinking(f"{tag}a{tag}b{closing(tag)}c{closing(tag)}")


def test_tags_of_other_names_do_not_close_a_thought() -> None:
    assert is_thinking("<think>so</analysis>")
    assert is_thinking("<think>so<|end|>")
    assert is_thinking("<|channel|>analysis<|message|>so</think>")
    assert is_thinking("<think><analysis></think>")


@pytest.mark.parametrize(
    "text",
    ["[Analysis]", "<b>think</b>", "a < think > b?", "<thinker>", "[analysis](x)", "<think/>", "<|end|>", "think>"],
)
def test_other_tags_and_words_open_no_thought(text: str) -> None:
    assert is_thinking(text) == (text == "a < think > b?")


@pytest.mark.parametrize("tag", OPEN)
def test_the_first_thought_ends_with_all_thoughts_inside_it(tag: str) -> None:
    first = f" {tag}a{closing(tag)}"
    assert end_of_first_thought(f"{first}said") == len(first)
    assert end_of_first_thought(f"Well. {first}said") == 0
    assert end_of_first_thought(f"{tag}never closed") == 0
    assert end_of_first_thought("said") == 0
    inner = "<think>a<think>b</think>c</think>"
    assert end_of_first_thought(f"{inner}said</think>") == len(inner)


def test_what_is_said_is_outside_of_all_thoughts() -> None:
    assert outside_thoughts("said") == "said"
    assert outside_thoughts("a<think>b</think>c<analysis>d</analysis>e") == "a\nc\ne"
    assert outside_thoughts("a<think>b<think>c</think>d</think>e") == "a\ne"
    assert outside_thoughts("a<think>b") == "a"
    assert outside_thoughts("a</think>b") == "b"
    assert outside_thoughts("a<|end|>b") == "a\nb"


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<think a=", "< ", "<|channel|>", "<|channel|>a", "a<think>"])
@pytest.mark.parametrize("look", [end_of_first_thought, is_thinking, outside_thoughts])
def test_the_time_grows_no_faster_than_the_text(look: object, piece: str) -> None:
    assert callable(look)
    spent = []
    for num in (1_000, 16_000):
        start = time.thread_time()
        look(piece * num)
        spent.append(time.thread_time() - start)
    assert spent[1] < 60 * max(spent[0], 1e-3)
