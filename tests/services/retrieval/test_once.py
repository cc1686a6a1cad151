"""Once: made by one thread, waited for by the others."""

from __future__ import annotations

import threading

import pytest

from rewardflow.services.retrieval.once import Once


def test_of_many_threads_one_makes_the_value_and_all_get_it() -> None:
    made: list[object] = []
    may_end = threading.Event()

    def make() -> object:
        assert may_end.wait(10)
        made.append(object())
        return made[-1]

    once = Once(make)
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(once())) for _ in range(8)]
    for thread in threads:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert got == made * 8


def test_none_is_a_value_too() -> None:
    calls: list[int] = []
    once = Once(lambda: calls.append(1))
    once()
    once()
    assert calls == [1]


def test_a_failure_is_told_and_the_next_one_tries_again() -> None:
    outcomes = iter([0, 1])
    once = Once(lambda: 1 // next(outcomes))
    with pytest.raises(ZeroDivisionError):
        once()
    assert once() == 1
