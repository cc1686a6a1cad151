"""The cursor: every prompt once an epoch, nothing lost or repeated over give-backs and restores."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.data.cursor import PromptCursor, epoch_order
from rewardflow.data.generated_tasks import GeneratedTask
from rewardflow.data.prompt_set import PromptList
from rewardflow.errors import InvalidInput
from rewardflow.flow.protocols import PromptSource
from rewardflow.flow.records import Prompt


def listed(size: int, *, start: int = 0) -> PromptList:
    return PromptList([Prompt(uid=str(i), text=f"prompt {start + i}") for i in range(size)])


def uids(prompts: Sequence[Prompt]) -> list[int]:
    return [int(prompt.uid) for prompt in prompts]


def through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state))


# -- order --


@given(size=st.integers(0, 300), seed=st.integers(-5, 10**12), epoch=st.integers(0, 10**6))
def test_an_order_is_a_permutation_sorted_by_the_documented_digest(size: int, seed: int, epoch: int) -> None:
    order = epoch_order(size, seed, epoch)
    assert sorted(order) == list(range(size))
    digests = [hashlib.blake2b(f"{seed}/{epoch}/{i}".encode(), digest_size=8).digest() for i in order]
    assert digests == sorted(digests)


def test_the_order_is_the_same_on_every_machine() -> None:
    assert epoch_order(8, 0, 0) == [0, 4, 2, 3, 7, 6, 5, 1]


def test_epochs_and_seeds_have_their_own_orders() -> None:
    orders = {tuple(epoch_order(30, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_epochs_follow_each_other_for_ever_each_in_its_own_order() -> None:
    cursor: PromptSource = PromptCursor(listed(5), seed=3)
    assert uids(cursor.take(12)) == [*epoch_order(5, 3, 0), *epoch_order(5, 3, 1), *epoch_order(5, 3, 2)[:2]]


def test_without_shuffling_the_order_is_that_of_the_rows() -> None:
    assert uids(PromptCursor(listed(3), shuffle=False).take(7)) == [0, 1, 2, 0, 1, 2, 0]


def test_a_task_without_end_is_taken_number_by_number() -> None:
    assert uids(PromptCursor(GeneratedTask(task="arithmetic"), seed=1).take(4)) == [0, 1, 2, 3]


def test_prompts_that_come_back_come_next_in_their_order() -> None:
    cursor = PromptCursor(listed(9), shuffle=False)
    taken = cursor.take(6)
    cursor.give_back([taken[4], taken[2]])
    cursor.give_back([taken[5]])
    assert uids(cursor.take(5)) == [4, 2, 5, 6, 7]


def test_what_is_no_prompt_of_the_set_cannot_be_given_back() -> None:
    cursor = PromptCursor(listed(2), shuffle=False)
    for uid in ("2", "-1", "one", "01", "٣"):
        with pytest.raises(InvalidInput, match="of which there are 2, got"):
            cursor.give_back([Prompt(uid="0"), Prompt(uid=uid)])
    assert uids(cursor.take(2)) == [0, 1]


def test_the_cursor_counts_what_it_did() -> None:
    cursor = PromptCursor(listed(4), shuffle=False, keep=lambda prompt: prompt.uid != "1")
    cursor.give_back(cursor.take(3)[1:])
    told = cursor.statistics()
    assert (told.epoch, told.position, told.num_waiting) == (0, 4, 2)
    assert (told.num_taken, told.num_given_back, told.num_left_out) == (3, 2, 1)


# -- what does not fit --


def test_prompts_that_do_not_fit_are_left_out_in_every_epoch() -> None:
    cursor = PromptCursor(listed(4), shuffle=False, keep=lambda prompt: prompt.uid != "2")
    assert uids(cursor.take(7)) == [0, 1, 3, 0, 1, 3, 0]


@given(size=st.integers(1, 12), seed=st.integers(0, 50))
def test_a_single_prompt_that_fits_is_found_whatever_the_order(size: int, seed: int) -> None:
    cursor = PromptCursor(listed(size), seed=seed, keep=lambda prompt: prompt.uid == "0")
    assert uids(cursor.take(5)) == [0] * 5


@pytest.mark.parametrize("prompts", [listed(3), GeneratedTask(task="copy_digits")], ids=["finite", "endless"])
def test_if_nothing_fits_that_is_said_and_not_tried_for_ever(prompts: PromptList | GeneratedTask) -> None:
    with pytest.raises(InvalidInput, match="at least one prompt must fit, got"):
        PromptCursor(prompts, keep=lambda prompt: False).take(1)


def test_a_take_that_fails_has_taken_nothing() -> None:
    def keep(prompt: Prompt) -> bool:
        if prompt.uid == "2" and failing:
            raise InvalidInput("too long")
        return True

    cursor = PromptCursor(listed(4), shuffle=False, keep=keep)
    failing = False
    cursor.give_back(cursor.take(2)[1:])
    failing = True
    with pytest.raises(InvalidInput, match="too long"):
        cursor.take(3)
    failing = False
    assert uids(cursor.take(3)) == [1, 2, 3]


# -- state --


def test_a_restored_cursor_goes_on_where_the_other_stood() -> None:
    first = PromptCursor(listed(5), seed=1)
    first.give_back(first.take(3)[1:])
    second = PromptCursor(listed(5), seed=1)
    second.restore(through_json(first.state()))
    assert second.take(20) == first.take(20)


def test_prompts_in_flight_are_the_first_of_whoever_restores() -> None:
    first = PromptCursor(listed(9), shuffle=False)
    taken = first.take(6)
    first.give_back(taken[4:])
    state = first.state(in_flight=taken[2:4])
    second = PromptCursor(listed(9), shuffle=False)
    second.restore(state)
    assert uids(second.take(6)) == [2, 3, 4, 5, 6, 7]
    assert uids(first.take(3)) == [4, 5, 6]  # telling the state changed nothing


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 9)),
        st.tuples(st.just("give_back"), st.integers(0, 5)),
        st.tuples(st.just("restore"), st.just(0)),
    ),
    max_size=40,
)


@given(
    size=st.integers(1, 7), seed=st.integers(0, 9), is_shuffled=st.booleans(), is_endless=st.booleans(), actions=ACTIONS
)
def test_nothing_is_skipped_or_repeated_over_any_give_backs_and_restores(
    size: int, seed: int, is_shuffled: bool, is_endless: bool, actions: list[tuple[str, int]]
) -> None:
    def make() -> PromptCursor:
        prompts = GeneratedTask(task="copy_digits") if is_endless else listed(size)
        return PromptCursor(prompts, seed=seed, shuffle=is_shuffled)

    fresh = iter(uids(make().take(500)))
    expected: deque[int] = deque()  # given back and not taken again
    used: Counter[int] = Counter()
    held: list[Prompt] = []
    cursor = make()
    for action, count in actions:
        if action == "take":
            taken = cursor.take(count)
            assert uids(taken) == [expected.popleft() if expected else next(fresh) for _ in range(count)]
            held += taken
        elif action == "give_back":
            back, held = held[:count], held[count:]
            cursor.give_back(back)
            expected.extend(uids(back))
        else:
            state, cursor = through_json(cursor.state()), make()
            cursor.restore(state)
    used.update(uids(held))
    used.update(uids(cursor.take(len(expected))))
    if not is_endless and used:
        assert max(used.values()) - min(used[i] for i in range(size)) <= 1  # no prompt an epoch ahead of another


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda: PromptCursor(listed(4)), "rows was 5 and is 4, content was '"),
        (lambda: PromptCursor(listed(5, start=1)), "content was '"),
        (lambda: PromptCursor(listed(5), seed=2), "seed was 0 and is 2"),
        (lambda: PromptCursor(listed(5), shuffle=False), "shuffle was True and is False"),
        (lambda: PromptCursor(GeneratedTask(task="arithmetic")), "task was None and is 'arithmetic'"),
    ],
)
def test_a_state_is_refused_by_other_prompts_with_the_difference(
    other: Callable[[], PromptCursor], difference: str
) -> None:
    with pytest.raises(InvalidInput, match="onto the prompts it belongs to, but") as caught:
        other().restore(PromptCursor(listed(5)).state())
    assert difference in str(caught.value)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"version": 2}, "must have version 1, got 2"),
        ({"epoch": -1}, "epoch of a cursor's state must be a whole number of at least 0, got -1"),
        ({"position": 6}, "position of a cursor's state must be a whole number of at least 0 and at most 5, got 6"),
        ({"given_back": None}, "given_back of a cursor's state must be a list of uids, got None"),
        ({"given_back": ["5"]}, "a uid must be that of a prompt of this set, of which there are 5, got '5'"),
        ({"data": None}, "rows was None and is 5"),
    ],
)
def test_a_state_that_was_tampered_with_is_refused_and_changes_nothing(change: dict[str, Any], rule: str) -> None:
    cursor = PromptCursor(listed(5))
    before = cursor.state()
    with pytest.raises(InvalidInput, match=rule):
        cursor.restore({**before, "position": 3, **change})
    assert cursor.state() == before
