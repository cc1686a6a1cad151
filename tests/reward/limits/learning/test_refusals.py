from __future__ import annotations

import math
import random

from rewardflow.reward.limits.learning.refusals import Refusals


def test_what_was_accepted_between_the_first_and_the_last_refusal_gives_the_rate() -> None:
    refusals = Refusals()
    for index in (11, 20, 31):  # one call each 0.1 s
        refusals.add(index * 0.1, index, 10.0)
    refusals.settle(math.inf)
    assert refusals.num_accepted == 18
    assert abs(refusals.elapsed_s - 2.0) < 1e-9


def test_refusals_may_arrive_in_any_order() -> None:
    ordered, shuffled = Refusals(), Refusals()
    indices = list(range(5, 100, 7))
    for index in indices:
        ordered.add(float(index), index, 1.0)
    random.Random(0).shuffle(indices)
    for index in indices:
        shuffled.add(float(index), index, 1.0)
    ordered.settle(math.inf)
    shuffled.settle(math.inf)
    assert (shuffled.num_accepted, shuffled.elapsed_s) == (ordered.num_accepted, ordered.elapsed_s)


def test_a_refusal_long_after_the_last_begins_a_new_count() -> None:
    refusals = Refusals()
    refusals.add(1.0, 1, 1.0)
    refusals.add(2.0, 2, 1.0)
    refusals.add(1000.0, 1000, 1.0)
    refusals.settle(math.inf)
    assert (refusals.num_refused, refusals.num_accepted, refusals.elapsed_s) == (1, 0, 0.0)


def test_the_lowest_refused_rate_is_kept() -> None:
    refusals = Refusals()
    for index, rate in enumerate((12.0, 11.0, 13.0)):
        refusals.add(float(index), index, rate)
    assert refusals.lowest_rate == 11.0


def test_calls_too_young_to_have_been_refused_are_not_counted_as_accepted() -> None:
    refusals = Refusals()
    for index in (1, 5, 90):
        refusals.add(float(index), index, 1.0)
    refusals.settle(sent_before=50.0)
    assert (refusals.num_heard, refusals.num_refused, refusals.num_accepted) == (3, 2, 3)
    refusals.settle(sent_before=90.0)
    assert (refusals.num_refused, refusals.num_accepted) == (3, 87)
