"""verl's rules with the sandbox, beside a function in the place of verl's that tells what it got."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from rewardflow.adapters.verl.settings import SANDBOX_RULES
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.source import RewardSource
from rewardflow.types import Rollout


def told(*, concurrent_semaphore: threading.Semaphore, **arguments: Any) -> dict[str, Any]:
    """Returns its arguments, and how many requests could run at once."""
    places = 0
    while concurrent_semaphore.acquire(blocking=False):
        places += 1
    for _ in range(places):
        concurrent_semaphore.release()
    return {"score": float(places), **arguments}


@pytest.fixture(autouse=True)
def _verls_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("verl.utils.reward_score")
    module.default_compute_score = told  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def score(**settings: Any) -> dict[str, Any]:
    reward = load_reward(RewardSource.of(SANDBOX_RULES, settings))
    rollout = Rollout(
        group_id="a", index=0, group_size=1, prompt="p", response="r", ground_truth="g", data_source="taco"
    )
    result: dict[str, Any] = reward.function(**reward.arguments([rollout]))
    return result


def test_requests_to_the_sandbox_are_bounded_as_the_user_says() -> None:
    result = score(sandbox_fusion_url="http://127.0.0.1:8080", memory_limit_mb=512, max_concurrent=3)
    assert result["score"] == 3
    assert (result["sandbox_fusion_url"], result["memory_limit_mb"]) == ("http://127.0.0.1:8080", 512)
    assert (result["solution_str"], result["ground_truth"], result["data_source"]) == ("r", "g", "taco")
    assert score(sandbox_fusion_url="http://127.0.0.1:8080")["score"] == 64


def test_other_arguments_go_to_verls_function() -> None:
    assert score(sandbox_fusion_url="http://127.0.0.1:8080", own=1)["own"] == 1
