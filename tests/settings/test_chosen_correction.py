"""What `--check` says about the correction of stale rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.flow.schedule import Schedule
from rewardflow.settings.chosen_correction import chosen_correction
from rewardflow.settings.run_settings import AlgorithmSettings, DataSettings, GenerationSettings, RunSettings


def settings(max_staleness: int = 1, engine: Any = "hf", **algorithm: Any) -> RunSettings:
    return RunSettings(
        reward="rule.py:compute_score",
        data=DataSettings(task="copy_digits"),
        schedule=Schedule(groups_per_step=8, mini_batches=4, max_staleness=max_staleness),
        steps=3,
        generation=GenerationSettings(engine=engine),
        algorithm=AlgorithmSettings(**algorithm),
    )


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ({"loss": "decoupled"}, "weights by token up to 5, above it leave out"),
        ({"behaviour_weights": "sequence", "behaviour_weight_cap": None}, "weights by sequence"),
        ({"ratio_to": "behaviour"}, "ratio to the policy that generated"),
        ({"reject": "token"}, "rejection by token outside 0.5 to 2"),
    ],
)
def test_a_correction_that_is_set_is_named(algorithm: dict[str, Any], name: str) -> None:
    found = chosen_correction(settings(**algorithm))
    assert (found.name, found.reason) == (name, "set in algorithm")


def test_stale_rollouts_without_a_correction_are_explained_with_where_it_was_measured() -> None:
    found = chosen_correction(settings())
    assert found.name == "none"
    assert found.reason.startswith("rollouts are up to 1 step old; every correction tried learnt later")
    assert "docs/benchmarks.md" in found.reason


@pytest.mark.parametrize("staleness", [2, 4])
def test_with_more_staleness_check_claims_no_more_than_was_measured_and_says_what_it_costs(staleness: int) -> None:
    reason = chosen_correction(settings(max_staleness=staleness)).reason
    assert reason.startswith(f"rollouts are up to {staleness} steps old; no correction tried was better, and")
    assert "learning slower" in reason
    assert "docs/benchmarks.md" in reason


def test_on_policy_rollouts_need_none_but_an_engine_may_compute_differently() -> None:
    assert chosen_correction(settings(max_staleness=0)).reason == "rollouts are of the weights that train"
    assert "engine_diff_mean" in chosen_correction(settings(max_staleness=0, engine="vllm")).reason
