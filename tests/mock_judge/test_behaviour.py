"""Plans depend on the seed, the request and how often it was sent, and on nothing else."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.mock_judge.behaviour import Behaviour, PlannedReply
from rewardflow.mock_judge.settings import MockJudgeSettings

MIX = {"429": 0.05, "500": 0.03, "hang": 0.01, "nan": 0.01}


def a_behaviour(**settings: Any) -> Behaviour:
    return Behaviour(MockJudgeSettings(**{"latency": "uniform:1,40", "faults": MIX, **settings}))


def plans(behaviour: Behaviour, count: int, times_before: int = 0) -> list[PlannedReply]:
    return [behaviour.plan(behaviour.key_of({"number": number}), times_before) for number in range(count)]


def test_a_seed_gives_the_same_plans_in_every_judge() -> None:
    assert plans(a_behaviour(), 100) == plans(a_behaviour(), 100)


def test_another_seed_another_attempt_and_another_request_have_other_luck() -> None:
    first = plans(a_behaviour(), 2)
    assert first[0] != first[1]
    assert first[0] != plans(a_behaviour(seed=1), 1)[0]
    assert first[0] != plans(a_behaviour(), 1, times_before=1)[0]


def test_plans_do_not_depend_on_the_order_in_which_they_are_asked_for() -> None:
    behaviour = a_behaviour()
    asked = [(number, times) for number in range(50) for times in range(3)]
    in_order = {(number, times): behaviour.plan(behaviour.key_of(number), times) for number, times in asked}
    random.Random(7).shuffle(asked)
    assert {(number, times): behaviour.plan(behaviour.key_of(number), times) for number, times in asked} == in_order


@given(st.dictionaries(st.text(), st.integers() | st.text(), min_size=2))
def test_the_order_of_keys_in_a_request_does_not_count(content: dict[str, Any]) -> None:
    behaviour = a_behaviour()
    assert behaviour.key_of(content) == behaviour.key_of(dict(reversed(content.items())))


def test_faults_come_in_their_shares() -> None:
    found = Counter(plan.fault for plan in plans(a_behaviour(), 20_000))
    for fault, share in MIX.items():
        assert found[fault] / 20_000 == pytest.approx(share, rel=0.2)
    assert found[None] / 20_000 == pytest.approx(0.9, rel=0.01)


def test_delays_follow_their_distribution_and_are_scaled() -> None:
    full = [plan.delay_s for plan in plans(a_behaviour(), 2_000)]
    scaled = [plan.delay_s for plan in plans(a_behaviour(scale=0.01), 2_000)]
    assert sum(full) / 2_000 == pytest.approx(20.5, rel=0.05)
    assert scaled == pytest.approx([delay_s * 0.01 for delay_s in full])


def test_delay_and_fault_have_nothing_to_do_with_each_other() -> None:
    behaviour = a_behaviour(faults={"500": 0.5})
    slow = [plan.fault for plan in plans(behaviour, 4_000) if plan.delay_s > 20.5]
    assert slow.count("500") / len(slow) == pytest.approx(0.5, abs=0.05)
