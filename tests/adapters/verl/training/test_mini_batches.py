"""Which groups are trained now, and in which order verl's workers get their rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.training.mini_batches import interleaved, num_ready


@pytest.mark.parametrize(
    ("num_judged", "taken", "expected"),
    [(2, 0, 2), (3, 0, 2), (7, 2, 6), (8, 0, 8), (8, 6, 8), (4, 2, 4)],
)
def test_groups_leave_in_whole_mini_batches(num_judged: int, taken: int, expected: int) -> None:
    assert num_ready(num_judged, taken=taken, per_update=2, total=8) == expected


def test_a_short_steps_last_mini_batch_is_short() -> None:
    assert num_ready(5, taken=4, per_update=2, total=5) == 5
    assert num_ready(4, taken=0, per_update=2, total=5) == 4


@given(
    ranks=st.integers(1, 4),
    rows_per_rank=st.integers(1, 3),
    num_mini_batches=st.integers(1, 4),
)
def test_every_rank_trains_on_its_share_of_each_mini_batch_in_their_order(
    ranks: int, rows_per_rank: int, num_mini_batches: int
) -> None:
    size = ranks * rows_per_rank
    mini_batches = [[(number, row) for row in range(size)] for number in range(num_mini_batches)]
    by_rank = cut(interleaved(mini_batches, ranks=ranks), ranks)
    for number, rows in enumerate(mini_batches):
        shares = [cut(share, num_mini_batches)[number] for share in by_rank]
        assert shares == cut(rows, ranks)


def cut(rows: Sequence[tuple[int, int]], parts: int) -> list[Sequence[tuple[int, int]]]:
    """As verl does it: in parts of one length."""
    length = len(rows) // parts
    return [rows[start : start + length] for start in range(0, len(rows), length)]
