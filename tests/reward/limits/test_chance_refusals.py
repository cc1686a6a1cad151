"""Refusals that go on at a much lower rate are chance; those that do not are a limit's."""

from __future__ import annotations

from rewardflow.reward.limits.chance_refusals import ChanceRefusals
from rewardflow.reward.limits.refusals import Refusals


def after_a_test(refused: set[int], *, share: float = 0.05, num_calls: int = 160) -> ChanceRefusals:
    """Runs a test in which these calls are refused, after that share was refused at a higher rate."""
    chance, refusals = ChanceRefusals(), Refusals()
    chance.begin_test(refusals, share)
    for index in range(1, num_calls + 1):
        refusals.num_sent += 1
        if index in refused:
            chance.refused(refusals, index)
    assert chance.share > 0.0 or chance.is_over(refusals)
    return chance


def with_refusals(num_refused: int, every: int) -> Refusals:
    refusals = Refusals()
    for number in range(num_refused):
        refusals.num_sent += every
        refusals.add(float(number), number * every, 10.0)
    refusals.settle(float(num_refused))
    return refusals


def test_refusals_that_go_on_at_a_lower_rate_are_chance() -> None:
    assert after_a_test({20, 40, 60, 80}).share == 0.05


def test_refusals_that_stop_at_a_lower_rate_are_not_chance() -> None:
    assert after_a_test({20}).share == 0.0


def test_only_a_share_near_the_measured_one_is_explained() -> None:
    chance = after_a_test({20, 40, 60, 80})
    assert chance.explains(with_refusals(50, every=20))
    assert not chance.explains(with_refusals(50, every=5))
    assert not ChanceRefusals().explains(with_refusals(50, every=20))


def test_a_refusal_with_retry_after_is_never_chance() -> None:
    refusals = with_refusals(2, every=100)
    assert ChanceRefusals().explains(refusals)
    refusals.stopped_s = 1.0
    assert not ChanceRefusals().explains(refusals)


def test_the_share_is_lowered_when_fewer_calls_are_refused() -> None:
    chance = after_a_test({20, 40, 60, 80})
    chance.measure(with_refusals(10, every=50))
    assert chance.share == 0.02
    quiet = Refusals()
    quiet.num_sent = 1000
    chance.measure(quiet)
    assert chance.share == 0.0
