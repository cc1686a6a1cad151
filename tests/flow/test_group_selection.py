"""Every selection of a step is taken once, whatever drops out and whenever that becomes known."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.flow.group_selection import GroupSelection, Selection
from rewardflow.flow.schedule import Order


def run(
    num_groups: int, kept: list[bool], num_reserves: int, order: Order, seed: int, places: list[int] | None = None
) -> tuple[list[int | None], set]:
    """Settles groups, and started reserves, in a random order; returns the selections and all judged groups.

    Adds to `places` the requested group in whose place each selection was made.
    """

    def take() -> int | None:
        taken = selection.take()
        if places is not None:
            places.append(taken.requested)
        return taken.number

    selection = GroupSelection(range(num_groups), order)
    judged = set(range(num_groups))
    out = list(range(num_groups)) + selection.add_reserves(range(num_groups, num_groups + num_reserves))
    selection.end_refill()
    taken: list[int | None] = []
    shuffled = random.Random(seed)
    while out:
        number = out.pop(shuffled.randrange(len(out)))
        started = selection.settle(number, is_kept=kept[number])
        if started is not None:
            out.append(started)
            judged.add(started)
        while selection.num_ready and shuffled.random() < 0.7:
            taken.append(take())
    while selection.num_ready:
        taken.append(take())
    assert selection.num_untaken == 0
    assert set(selection.unused_reserves()) == set(range(num_groups, num_groups + num_reserves)) - judged
    return taken, judged


GROUPS = st.integers(1, 8).flatmap(
    lambda n: st.integers(0, 5).flatmap(
        lambda r: st.tuples(st.just(n), st.just(r), st.lists(st.booleans(), min_size=n + r, max_size=n + r))
    )
)


@given(GROUPS, st.integers(0, 99))
def test_every_selection_is_taken_once_and_has_a_group_while_reserves_last(case: tuple, seed: int) -> None:
    num_groups, num_reserves, kept = case
    taken, judged = run(num_groups, kept, num_reserves, "completion", seed)
    filled = [number for number in taken if number is not None]
    assert len(taken) == num_groups
    assert sorted(filled) == sorted(number for number in judged if kept[number])
    if None in taken:
        assert len(judged) == num_groups + num_reserves


@given(GROUPS, st.integers(0, 99), st.sampled_from(["fixed", "completion"]))
def test_every_requested_group_has_one_selection_in_its_place(case: tuple, seed: int, order: Any) -> None:
    num_groups, num_reserves, kept = case
    places: list[int] = []
    run(num_groups, kept, num_reserves, order, seed, places)
    assert sorted(places) == list(range(num_groups))
    if order == "fixed":
        assert places == list(range(num_groups))


@given(GROUPS, st.integers(0, 99), st.integers(100, 199))
def test_with_a_fixed_order_the_selections_do_not_depend_on_when_verdicts_come(
    case: tuple, one: int, other: int
) -> None:
    num_groups, num_reserves, kept = case
    assert run(num_groups, kept, num_reserves, "fixed", one) == run(num_groups, kept, num_reserves, "fixed", other)


def test_a_reserve_takes_the_place_of_the_group_that_dropped_out() -> None:
    selection = GroupSelection(range(3), "fixed")
    selection.add_reserves(range(3, 5))
    assert selection.settle(1, is_kept=False) == 3
    selection.settle(0, is_kept=True)
    selection.settle(2, is_kept=True)
    assert selection.num_ready == 1
    selection.settle(3, is_kept=True)
    assert [selection.take() for _ in range(3)] == [Selection(0, 0), Selection(1, 3), Selection(2, 2)]
    assert selection.unused_reserves() == [4]


def test_a_selection_waits_for_another_round_of_reserves_until_no_more_can_come() -> None:
    selection = GroupSelection(range(2), "completion")
    assert selection.settle(0, is_kept=False) is None
    assert (selection.num_ready, selection.num_unreplaced) == (0, 1)
    assert selection.add_reserves(range(2, 4)) == [2]
    selection.settle(2, is_kept=False)
    selection.settle(3, is_kept=False)
    selection.end_refill()
    assert selection.take() == Selection(0, None)
