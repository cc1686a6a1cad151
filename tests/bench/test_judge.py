"""The judge's benchmark on a small scale; the figures themselves are measured by hand, not by tests."""

from __future__ import annotations

import multiprocessing
import urllib.request

import pytest

from rewardflow.bench.judge import cost_of_a_call, judge_process
from rewardflow.errors import InvalidInput


def test_a_judge_process_tells_its_counts_and_ends_with_its_block() -> None:
    with judge_process(seed=1) as process:
        with urllib.request.urlopen(f"{process.base_url}/models", timeout=30) as response:
            assert response.status == 200
        assert process.statistics().calls == 0
        assert [child.name for child in multiprocessing.active_children()] == ["mock-judge"]
    assert multiprocessing.active_children() == []


def test_settings_that_no_judge_can_have_are_refused_before_a_process_starts() -> None:
    with pytest.raises(InvalidInput, match="rpm"), judge_process(rpm=-1):
        pass
    assert multiprocessing.active_children() == []


def test_the_cost_of_a_call_is_given_beside_the_openai_client() -> None:
    cost, few, peak = cost_of_a_call(count=60, openai_count=20)
    assert (cost.value > 0, cost.unit, cost.bar) == (True, "ms", "<= 0.5")
    assert few.value > 0
    assert "openai" in cost.yardstick_name
    assert 1 <= peak.value <= 60
