"""A failing endpoint gets no calls but one probe at a time, and is used again after one success."""

from __future__ import annotations

import itertools

from rewardflow.reward.limits.breaker import Breaker


def opened(now: float = 100.0) -> Breaker:
    breaker = Breaker(window=10, share=0.8)
    breaker.start(now)
    for _ in range(10):
        breaker.failed(now, "503")
    return breaker


def test_it_opens_when_most_of_the_window_failed_and_not_before_the_window_is_full() -> None:
    breaker = Breaker(window=10, share=0.8)
    for _ in range(9):
        breaker.failed(1.0, "503")
    assert not breaker.is_open
    breaker.failed(1.0, "503")
    assert breaker.is_open


def test_a_minority_of_failures_leaves_it_closed() -> None:
    breaker = Breaker(window=10, share=0.8)
    for i in range(100):
        (breaker.failed(1.0, "503") if i % 2 else breaker.succeeded(1.0))
    assert not breaker.is_open


def test_old_failures_leave_the_window() -> None:
    breaker = Breaker(window=10, share=0.8)
    for _ in range(7):
        breaker.failed(1.0, "503")
    for _ in range(10):
        breaker.succeeded(1.0)
    for _ in range(7):
        breaker.failed(1.0, "503")
    assert not breaker.is_open


def test_one_probe_at_a_time_with_growing_pauses() -> None:
    breaker = opened(100.0)
    pauses = []
    now = 100.0
    for _ in range(7):
        ready_s = breaker.ready_at(now)
        pauses.append(ready_s - now)
        now = ready_s
        breaker.start(now)
        assert breaker.ready_at(now) == now + 10, "a second probe only if the first is not answered"
        breaker.failed(now, "503")
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_probes_that_hang_follow_each_other_every_ten_seconds() -> None:
    breaker = opened(100.0)
    starts: list[float] = []
    now = 101.0
    while now < 400.0:
        breaker.start(now)
        starts.append(now)
        for at in starts:
            if now < at + 60.0 <= now + 10.0:
                breaker.failed(at + 60.0, "no answer", is_silence=True)
        now = breaker.ready_at(now)
    assert {after - before for before, after in itertools.pairwise(starts)} == {10.0}


def test_one_success_closes_it_and_forgets_the_past() -> None:
    breaker = opened()
    breaker.start(102.0)
    breaker.succeeded(103.0)
    assert not breaker.is_open
    breaker.failed(103.0, "503")
    assert not breaker.is_open


def test_a_success_of_a_call_from_before_the_outage_does_not_close_it() -> None:
    breaker = opened(100.0)
    breaker.succeeded(100.5, started_s=98.0)
    assert breaker.is_open
    breaker.start(101.0)
    breaker.succeeded(101.5, started_s=101.0)
    assert not breaker.is_open


def test_a_probe_without_an_outcome_is_repeated_at_once() -> None:
    breaker = opened()
    breaker.start(101.0)
    breaker.abandoned(101.5)
    assert breaker.ready_at(101.5) == 101.5


def test_429s_alone_open_it_only_after_a_minute_without_any_success() -> None:
    breaker = Breaker(window=10, share=0.8)
    breaker.start(0.0)
    for second in range(59):
        breaker.rejected(float(second), "429")
    assert not breaker.is_open
    breaker.rejected(60.0, "insufficient quota")
    assert breaker.is_open


def test_without_a_share_it_never_opens() -> None:
    breaker = Breaker(window=2, share=None)
    for _ in range(50):
        breaker.failed(0.0, "503")
    assert not breaker.is_open
