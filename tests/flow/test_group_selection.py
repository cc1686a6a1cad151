"""Every share of a step is taken once, whatever drops out and whenever that becomes known."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.flow.group_selection import GroupSelection, Share
from rewardflow.flow.schedule import Order


def run(num_groups: int, kept: list[bool], num_reserves: int, order: Order, seed: int) -> tuple[list[int | None], set]:
    """Settle groups in a random order, reserves when they are started; what was taken, and which were ever judged."""
    shares = GroupSelection(range(num_groups), order)
    judged = set(range(num_groups))
    out = list(range(num_groups)) + shares.add_reserves(range(num_groups, num_groups + num_reserves))
    shares.end_refill()
    taken: list[int | None] = []
    shuffled = random.Random(seed)
    while out:
        number = out.pop(shuffled.randrange(len(out)))
        started = shares.settle(number, is_kept=kept[number])
        if started is not None:
            out.append(started)
            judged.add(started)
        while shares.num_ready and shuffled.random() < 0.7:
            taken.append(shares.take().number)
    while shares.num_ready:
        taken.append(shares.take().number)
    assert shares.num_untaken == 0
    assert set(shares.unused()) == set(range(num_groups, num_groups + num_reserves)) - judged
    return taken, judged


GROUPS = st.integers(1, 8).flatmap(
    lambda n: st.integers(0, 5).flatmap(
        lambda r: st.tuples(st.just(n), st.just(r), st.lists(st.booleans(), min_size=n + r, max_size=n + r))
    )
)


@given(GROUPS, st.integers(0, 99))
def test_every_share_is_taken_once_and_filled_while_reserves_last(case: tuple, seed: int) -> None:
    num_groups, num_reserves, kept = case
    taken, judged = run(num_groups, kept, num_reserves, "completion", seed)
    filled = [number for number in taken if number is not None]
    assert len(taken) == num_groups
    assert sorted(filled) == sorted(number for number in judged if kept[number])
    if None in taken:
        assert len(judged) == num_groups + num_reserves


@given(GROUPS, st.integers(0, 99), st.integers(100, 199))
def test_with_a_fixed_order_the_shares_do_not_depend_on_when_verdicts_come(case: tuple, one: int, other: int) -> None:
    num_groups, num_reserves, kept = case
    assert run(num_groups, kept, num_reserves, "fixed", one) == run(num_groups, kept, num_reserves, "fixed", other)


def test_a_reserve_takes_the_place_of_the_group_that_dropped_out() -> None:
    shares = GroupSelection(range(3), "fixed")
    shares.add_reserves(range(3, 5))
    assert shares.settle(1, is_kept=False) == 3
    shares.settle(0, is_kept=True)
    shares.settle(2, is_kept=True)
    assert shares.num_ready == 1
    shares.settle(3, is_kept=True)
    assert [shares.take() for _ in range(3)] == [Share(0), Share(3), Share(2)]
    assert shares.unused() == [4]


def test_a_share_waits_for_another_round_of_reserves_until_told_that_none_comes() -> None:
    shares = GroupSelection(range(2), "completion")
    assert shares.settle(0, is_kept=False) is None
    assert (shares.num_ready, shares.num_unfilled) == (0, 1)
    assert shares.add_reserves(range(2, 4)) == [2]
    shares.settle(2, is_kept=False)
    shares.settle(3, is_kept=False)
    shares.end_refill()
    assert shares.take() == Share(None)
