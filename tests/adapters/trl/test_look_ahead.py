"""Reading a trainer's batches ahead of their turn."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.trl.look_ahead import LookAhead


class Data:
    """Epochs of numbered batches; counts how often one is begun."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.num_begun = 0

    def epoch(self) -> Iterator[tuple[int, int]]:
        def read(number: int) -> Iterator[tuple[int, int]]:
            for place in range(self.batches):
                yield number, place

        self.num_begun += 1
        return read(self.num_begun - 1)


def test_the_batch_of_the_next_generation_is_known_before_its_turn() -> None:
    data = Data(6)
    look_ahead = LookAhead(lambda: None)
    epoch = data.epoch()
    assert look_ahead.take(epoch, 2, ahead=2) == [(0, 0), (0, 1)]
    assert [look_ahead.at(place) for place in range(5)] == [(0, 0), (0, 1), (0, 2), (0, 3), None]
    assert look_ahead.take(epoch, 2, ahead=0) == [(0, 2), (0, 3)]
    assert look_ahead.at(2) is None


def test_at_the_end_of_an_epoch_the_next_one_is_begun_once() -> None:
    data = Data(3)
    look_ahead = LookAhead(data.epoch)
    first = data.epoch()
    for _ in range(3):
        look_ahead.take(first, 1, ahead=2)
    assert [look_ahead.at(place) for place in range(3)] == [(0, 2), (1, 0), (1, 1)]
    passed = iter([("never", "read")])  # what the trainer passes for an epoch that was begun early
    assert [look_ahead.take(passed, 1, ahead=0) for _ in range(3)] == [[(1, 0)], [(1, 1)], [(1, 2)]]
    assert data.num_begun == 2
    assert look_ahead.take(passed, 1, ahead=0) == []


def test_an_epoch_that_the_trainer_leaves_early_takes_its_batches_with_it() -> None:
    data = Data(9)
    look_ahead = LookAhead(data.epoch)
    look_ahead.take(data.epoch(), 1, ahead=3)
    assert look_ahead.take(data.epoch(), 2, ahead=1) == [(1, 0), (1, 1)]


@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 9), st.integers(1, 4))
def test_whatever_is_read_ahead_the_trainer_gets_every_batch_once_in_order(
    batches: int, count: int, ahead: int, epochs: int
) -> None:
    data = Data(batches)
    look_ahead = LookAhead(data.epoch)
    taken = []
    for _ in range(epochs):
        epoch: Iterator[tuple[int, int]] = iter([]) if look_ahead._next_source is not None else data.epoch()
        left = batches
        while left > 0:
            taken += look_ahead.take(epoch, min(count, left), ahead=min(ahead, batches))
            left -= count
    assert taken == [(number, place) for number in range(epochs) for place in range(batches)]
