"""Generated tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.data.generated_tasks import GeneratedTask
from rewardflow.errors import InvalidInput

INDICES = st.integers(0, 10**12)


@given(index=INDICES, num_digits=st.integers(1, 40))
def test_copying_asks_for_the_digits_before_the_equals_sign(index: int, num_digits: int) -> None:
    prompt = GeneratedTask(task="copy_digits", num_digits=num_digits)[index]
    assert prompt.text == f"{prompt.ground_truth}="
    assert len(prompt.ground_truth) == num_digits
    assert prompt.ground_truth.isdecimal()
    assert (prompt.uid, prompt.data_source) == (str(index), "copy_digits")


@given(index=INDICES, num_digits=st.integers(1, 40))
def test_arithmetic_asks_for_the_sum(index: int, num_digits: int) -> None:
    prompt = GeneratedTask(task="arithmetic", num_digits=num_digits)[index]
    left, right = prompt.text.removesuffix("=").split("+")
    assert int(prompt.ground_truth) == int(left) + int(right)
    assert max(len(left), len(right)) <= num_digits


def test_prompts_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert [GeneratedTask(task="copy_digits", seed=7)[i].text for i in range(4)] == ["550=", "763=", "633=", "866="]
    assert [GeneratedTask(task="arithmetic", num_digits=1)[i].text for i in range(4)] == [
        "1+8=",
        "1+3=",
        "6+2=",
        "4+2=",
    ]


def test_all_digits_come_up_leading_zeros_too() -> None:
    task = GeneratedTask(task="copy_digits", num_digits=1)
    assert {task[i].ground_truth for i in range(200)} == set("0123456789")


def test_seeds_give_different_streams() -> None:
    streams = {tuple(GeneratedTask(task="copy_digits", seed=seed)[i].text for i in range(5)) for seed in range(20)}
    assert len(streams) == 20


def test_a_task_with_a_size_has_an_end() -> None:
    task = GeneratedTask(task="copy_digits", size=2)
    assert [task[0], task[1]] == [GeneratedTask(task="copy_digits")[i] for i in range(2)]
    for index in (2, -1):
        with pytest.raises(IndexError):
            task[index]


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"task": "sorting"}, "task must be one of copy_digits, copy_numbers, arithmetic, got 'sorting'"),
        ({"task": "arithmetic", "num_digits": 0}, "num_digits must be a whole number of at least 1"),
        ({"task": "arithmetic", "size": 0}, "size must be a whole number of at least 1"),
    ],
)
def test_a_task_that_cannot_be_is_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        GeneratedTask(**settings)


def test_numbers_to_copy_have_one_to_the_given_number_of_digits_equally_often() -> None:
    task = GeneratedTask(task="copy_numbers", num_digits=4, seed=1)
    answers = [str(task[index].ground_truth) for index in range(2000)]
    assert all(task[index].text == f"{answers[index]:<4}=" for index in range(50))
    counts = [sum(len(answer) == length for answer in answers) for length in range(1, 5)]
    assert all(400 < count < 600 for count in counts)
