"""When a limit is soft: refusals at a rate that is held, no burst, and no Retry-After."""

from __future__ import annotations

from rewardflow.reward.limits.learning.refusals import Refusals
from rewardflow.reward.limits.learning.soft_limits import SoftLimitEvidence, burst_size, refuses_bursts

MINUTE_S = 60.0


def calls(num_sent: int, num_refused: int) -> Refusals:
    refusals = Refusals()
    refusals.num_sent = num_sent
    for index in range(num_refused):
        refusals.add(float(index), 1 + index * num_sent // max(1, num_refused), 1.0)
    refusals.settle(float(num_sent))
    return refusals


def is_soft(evidence: SoftLimitEvidence, now: float = 0.0, *, is_surely_limit: bool = False) -> bool:
    return evidence.is_soft(now, is_surely_limit=is_surely_limit)


def held_twice(num_refused: int, rates: tuple[float, float] = (10.0, 10.5)) -> SoftLimitEvidence:
    evidence = SoftLimitEvidence()
    for rate in rates:
        evidence.held(calls(500, num_refused), rate)
    return evidence


def test_a_limit_that_refuses_calls_at_a_rate_that_is_held_twice_is_soft() -> None:
    assert is_soft(held_twice(num_refused=10))
    assert not is_soft(held_twice(num_refused=1)), "a hard limit may refuse one by chance"


def test_once_is_enough_if_refusals_stopped_at_a_lower_rate() -> None:
    evidence = SoftLimitEvidence()
    evidence.held(calls(500, 20), 10.0)
    assert not is_soft(evidence)
    assert is_soft(evidence, is_surely_limit=True)


def test_calls_at_another_rate_are_no_evidence() -> None:
    assert not is_soft(held_twice(num_refused=20, rates=(10.0, 14.0)))


def test_few_calls_are_no_evidence() -> None:
    evidence = SoftLimitEvidence()
    evidence.held(calls(100, 20), 10.0)
    assert not is_soft(evidence, is_surely_limit=True)


def test_a_limit_that_cannot_be_measured_in_hundreds_of_calls_is_soft() -> None:
    evidence, refusals = SoftLimitEvidence(), calls(400, 40)
    evidence.counted(refusals)
    evidence.counted(refusals)
    assert not is_soft(evidence), "the same calls count once"
    evidence.counted(calls(300, 30))
    assert is_soft(evidence)


def test_a_service_that_says_retry_after_is_never_pressed() -> None:
    evidence = held_twice(num_refused=20)
    evidence.stopped()
    assert not is_soft(evidence)
    assert not is_soft(evidence, now=1e6)


def test_a_limit_that_was_pressed_in_vain_is_left_alone_for_longer_each_time() -> None:
    evidence, now = SoftLimitEvidence(), 0.0
    waits_s = []
    for _ in range(6):
        evidence.pressed(now, 10.0, in_vain=True)
        began_at = now
        while not is_soft(evidence, now):
            evidence.held(calls(500, 20), 10.0)
            now += MINUTE_S
        waits_s.append(now - began_at)
    assert waits_s[0] >= 10 * MINUTE_S
    assert waits_s == sorted(waits_s)
    assert 110 * MINUTE_S <= waits_s[-1] <= 130 * MINUTE_S


def test_a_slow_limit_is_left_alone_for_as_many_calls() -> None:
    evidence = SoftLimitEvidence()
    evidence.pressed(0.0, 0.5, in_vain=True)
    for _ in range(2):
        evidence.held(calls(500, 20), 0.5)
    assert not is_soft(evidence, now=3900.0)
    assert is_soft(evidence, now=4100.0)


def test_two_fifths_of_calls_at_once_refused_show_that_there_is_no_burst_and_fewer_that_others_used_it() -> None:
    assert refuses_bursts(calls(burst_size(5.0), 4))
    assert not refuses_bursts(calls(burst_size(5.0), 3))
    assert burst_size(5.0) == 10
    assert burst_size(50.0) == 50
