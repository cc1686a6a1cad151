"""Writing that nobody waits for: in order, counted, and never the end of a run."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from rewardflow.runtime.records.background_writer import BackgroundStatistics, BackgroundWriter

TIMEOUT_S = 30.0


def counts(written: int, lost: int = 0, waiting: int = 0) -> BackgroundStatistics:
    return BackgroundStatistics(num_written=written, num_waiting=waiting, num_lost=lost)


class Place:
    """Remembers what it got; refuses what `refuses` says."""

    def __init__(self, refuses: Callable[[int], bool] = lambda item: False) -> None:
        self.items: list[int] = []
        self.threads: set[int] = set()
        self.is_left = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._refuses = refuses

    @contextlib.contextmanager
    def opened(self) -> Iterator[Callable[[int], None]]:
        yield self._write
        self.is_left = True

    def _write(self, item: int) -> None:
        self.may_go_on.wait(TIMEOUT_S)
        self.threads.add(threading.get_ident())
        if self._refuses(item):
            raise OSError("no room")
        self.items.append(item)


def test_items_are_written_in_order_on_another_thread_and_the_place_is_left() -> None:
    place = Place()
    writer = BackgroundWriter("place", place.opened, most_waiting=100)
    for item in range(50):
        writer.put(item)
    assert writer.flush(TIMEOUT_S)
    assert place.items == list(range(50))
    writer.close(TIMEOUT_S)
    assert place.is_left
    assert threading.get_ident() not in place.threads
    assert writer.statistics() == counts(50)


def test_what_cannot_be_written_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(refuses=lambda item: item % 2 == 1)
    writer = BackgroundWriter("the place", place.opened, most_waiting=100)
    for item in range(6):
        writer.put(item)
    writer.close(TIMEOUT_S)
    assert place.items == [0, 2, 4]
    assert writer.statistics() == counts(3, lost=3)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the place cannot be written, and the run goes on" in record.message
    assert "no room" in record.message


def test_a_place_that_cannot_be_opened_loses_everything_and_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    @contextlib.contextmanager
    def opened() -> Iterator[Callable[[int], None]]:
        raise ImportError("no such library")
        yield

    writer = BackgroundWriter("place", opened, most_waiting=100)
    writer.put(1)
    assert writer.flush(TIMEOUT_S)
    writer.put(2)
    writer.close(TIMEOUT_S)
    assert writer.statistics() == counts(0, lost=2)
    assert len(caplog.records) == 1


def test_no_more_than_so_many_wait() -> None:
    place = Place()
    place.may_go_on.clear()
    writer = BackgroundWriter("place", place.opened, most_waiting=3)
    for item in range(10):
        writer.put(item)
    assert writer.statistics() == counts(0, lost=7, waiting=3)
    place.may_go_on.set()
    writer.close(TIMEOUT_S)
    assert place.items == [0, 1, 2]


def test_a_place_that_never_ends_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    place.may_go_on.clear()
    writer = BackgroundWriter("place", place.opened, most_waiting=3)
    writer.put(1)
    assert not writer.flush(0.01)
    writer.close(0.01)
    assert "left behind" in caplog.text
    place.may_go_on.set()


def test_after_closing_everything_is_lost_and_closing_again_is_fine() -> None:
    writer = BackgroundWriter("place", Place().opened, most_waiting=3)
    writer.close(TIMEOUT_S)
    writer.close(TIMEOUT_S)
    writer.put(1)
    assert writer.flush(TIMEOUT_S)
    assert writer.statistics() == counts(0, lost=1)
