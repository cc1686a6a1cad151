"""A mock judge in a process of its own: its counts, its end, and the settings it refuses."""

from __future__ import annotations

import multiprocessing
import urllib.request

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.judge_process import judge_process


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
