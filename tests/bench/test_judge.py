"""The judge's benchmark on a small scale; the figures themselves are measured by hand, not by tests."""

from __future__ import annotations

from rewardflow.bench.judge import cost_of_a_call


def test_the_cost_of_a_call_is_given_beside_the_openai_client() -> None:
    cost, few, peak = cost_of_a_call(count=60, openai_count=20)
    assert (cost.value > 0, cost.unit, cost.bar) == (True, "ms", "<= 0.5")
    assert few.value > 0
    assert "openai" in cost.yardstick_name
    assert 1 <= peak.value <= 60
