"""Pass@k: only the best rollout gets an advantage, its lead."""

from __future__ import annotations

import pytest
from algo.groups import scored_group

from rewardflow.algo.estimators.grpo_passk import BestOfGroup


def test_only_the_best_has_an_advantage_its_lead() -> None:
    assert BestOfGroup(scale="none")([scored_group(0.5, None, 2.0, 0.25)]) == [[0.0, 0.0, 1.5, 0.0]]


def test_two_that_are_best_have_no_lead() -> None:
    assert BestOfGroup()([scored_group(2.0, 0.5, 2.0)]) == [[0.0, 0.0, 0.0]]


def test_the_lead_can_be_divided_by_the_spread_of_the_batch() -> None:
    first, second = BestOfGroup(scale="batch")([scored_group(1.0, 0.0), scored_group(1.0, 2.0)])
    spread = (2 / 3) ** 0.5 + 1e-6
    assert (first[0], second[1]) == pytest.approx((1 / spread, 1 / spread))
