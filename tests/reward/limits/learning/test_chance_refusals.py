"""Refusals that go on at a much lower rate are chance; those that do not are a limit's."""

from __future__ import annotations

from rewardflow.reward.limits.learning.chance_refusals import ChanceRefusals
from rewardflow.reward.limits.learning.refusals import Refusals


def after_a_test(refused: set[int], *, share: float = 0.05, most_calls: int = 400) -> ChanceRefusals:
    """Runs a test in which these calls are refused at once, after that share was refused at a higher rate."""
    chance, refusals = ChanceRefusals(), Refusals()
    chance.begin_test(refusals, share, now=0.0)
    for index in range(1, most_calls + 1):
        refusals.num_sent += 1
        if index in refused:
            refusals.add(0.1 * index, index, 10.0)
        is_sure = index in refused and chance.refused(refusals, index)
        is_chance = True if is_sure else chance.test_shows_chance(0.1 * index, listen_s=0.0)
        if is_chance is not None:
            chance.end_test(is_chance=is_chance)
            return chance
    raise AssertionError("the test went on")


def with_refusals(num_refused: int, every: int) -> Refusals:
    refusals = Refusals()
    for number in range(num_refused):
        refusals.num_sent += every
        refusals.add(float(number), number * every, 10.0)
    refusals.settle(float(num_refused))
    return refusals


def test_refusals_that_go_on_at_a_lower_rate_are_chance() -> None:
    assert 0.03 < after_a_test({20, 40, 60, 80}).share < 0.07


def test_refusals_that_stop_at_a_lower_rate_are_not_chance() -> None:
    chance = after_a_test({20})
    assert chance.share == 0.0
    assert chance.is_expected  # the limit may be soft


def test_a_share_that_was_too_high_by_luck_does_not_hide_that_refusals_go_on() -> None:
    assert after_a_test(set(range(30, 400, 30)), share=0.12).share > 0.0


def test_after_a_minute_the_likelier_explanation_counts() -> None:
    for num_refused, is_chance in ((0, False), (1, True)):
        chance, refusals = ChanceRefusals(), Refusals()
        chance.begin_test(refusals, 0.05, now=0.0)
        refusals.num_sent = 40
        assert not any(chance.refused(refusals, 20) for _ in range(num_refused))
        assert chance.test_shows_chance(59.0, listen_s=1.0) is None
        assert chance.test_shows_chance(60.0, listen_s=1.0) is is_chance


def test_a_test_waits_for_refusals_on_their_way_before_it_says_that_they_stopped() -> None:
    chance, refusals = ChanceRefusals(), Refusals()
    chance.begin_test(refusals, 0.1, now=0.0)
    refusals.num_sent = 150
    assert chance.test_shows_chance(10.0, listen_s=5.0) is None
    assert not any(chance.refused(refusals, index) for index in (20, 40, 60))
    assert chance.test_shows_chance(15.0, listen_s=5.0) is None
    assert chance.refused(refusals, 80)


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


def test_the_share_follows_the_calls_of_rates_that_are_kept() -> None:
    chance = after_a_test({20, 40, 60, 80})
    for _ in range(3):
        chance.measure(with_refusals(10, every=50))
    assert 0.02 < chance.share < 0.03
    quiet = Refusals()
    for num_sent in range(0, 4001, 100):
        quiet.num_sent = num_sent
        chance.measure(quiet)
    assert chance.share == 0.0


def test_calls_that_are_measured_again_count_once() -> None:
    chance = after_a_test({20, 40, 60, 80})
    kept = with_refusals(10, every=50)
    chance.measure(kept)
    share = chance.share
    chance.measure(kept)
    assert chance.share == share
