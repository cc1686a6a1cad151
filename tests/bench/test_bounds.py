"""The bound of a list of calls: the times of an ideal machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.bench.bounds import list_schedule, time_of_groups


def test_calls_start_in_order_in_the_first_free_slot() -> None:
    assert list_schedule([3.0, 1.0, 1.0, 2.0], slots=2) == [3.0, 1.0, 2.0, 4.0]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(1, 40))
def test_no_schedule_is_faster_than_its_longest_call_or_its_share_of_all_work(delays: list[float], slots: int) -> None:
    end = max(list_schedule(delays, slots))
    assert end >= max(delays)
    assert end >= sum(delays) / slots * (1 - 1e-9)
    assert end <= sum(delays) / slots + max(delays) + 1e-6


def test_a_group_is_complete_with_its_last_call() -> None:
    ends = [1.0, 5.0, 2.0, 3.0]
    assert [time_of_groups(ends, 2, count) for count in (1, 2)] == [3.0, 5.0]
