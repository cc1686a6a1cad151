"""The three ways that `rewardflow bench trl` compares, each trained for two steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.bench.contenders import trl_judged
from rewardflow.bench.contenders.judged_workload import MODEL, WAYS, JudgedResult, JudgedWorkload


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_and_writes_its_steps(model: str, tmp_path: Path, way: str) -> None:
    (tmp_path / MODEL).symlink_to(model)
    JudgedWorkload(way=way, steps=2, scale=0.0, seed=0, prompts_per_step=4).write(tmp_path)
    trl_judged.main(tmp_path)
    result = JudgedResult.read(tmp_path)
    assert len(result.step_s) == len(result.rewards) == 2
    assert all(seconds > 0 for seconds in result.step_s)
    assert set(result.versions) == {"trl", "torch", "transformers"}
