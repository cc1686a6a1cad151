"""Serial numbers that are over, against a plain set of them."""

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.shared_agent.host_clients import SettledSerials

NUMBERS = st.sets(st.integers(1, 40), max_size=12)


@given(st.lists(st.tuples(NUMBERS, st.none() | st.integers(0, 40))))
def test_it_holds_what_was_added_and_nothing_else(steps: list[tuple[set[int], int | None]]) -> None:
    settled, expected = SettledSerials(), set[int]()
    for numbers, last in steps:
        if last is None:
            settled.add(numbers)
            expected |= numbers
        else:
            settled.add_all_but(numbers, last=last)
            expected |= set(range(1, last + 1)) - numbers
        assert {number for number in range(1, 42) if number in settled} == expected


def test_a_large_number_takes_no_more_time_and_memory_than_a_small_one() -> None:
    """A client of one job may send any numbers, and the agent serves the other jobs, too."""
    settled = SettledSerials()
    settled.add_all_but({3, 10**17}, last=10**18)
    settled.add({3})
    assert 10**17 not in settled
    assert all(number in settled for number in (1, 3, 10**17 - 1, 10**18))
    assert 10**18 + 1 not in settled
