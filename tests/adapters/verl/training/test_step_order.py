"""Which prompts belong to which step, and in which order its groups are trained."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.training.step_order import StepQueue, interleaved, num_ready, restored_steps
from rewardflow.errors import FlowError


def test_steps_leave_in_the_order_they_came() -> None:
    steps = StepQueue()
    steps.open(3, ["a", "b"])
    steps.open(4, ["c"])
    assert steps.uids == ["a", "b", "c"]
    assert steps.take(3).uids == ("a", "b")
    assert steps.take(4).uids == ("c",)


def test_a_step_out_of_order_is_a_mistake() -> None:
    steps = StepQueue()
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
