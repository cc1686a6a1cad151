"""The metrics of several updates become those of a step."""

from __future__ import annotations

import dataclasses

import pytest

from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.records import UpdateReport
from rewardflow.flow.reports import StepReport, combined_metrics, mean_of


def test_figures_are_taken_together_by_their_mean_and_extremes_by_the_most_extreme() -> None:
    parts = [{"kl": 1.0, "a_max": 3.0, "a_min": 2.0}, {"kl": 3.0, "a_max": 1.0, "a_min": 1.0, "only_here": 5.0}]
    assert combined_metrics(parts) == {"kl": 2.0, "a_max": 3.0, "a_min": 1.0, "only_here": 5.0}
    assert combined_metrics([]) == {}


def update(kl: float, **by_staleness: float) -> UpdateReport:
    return UpdateReport(
        num_sequences=2,
        num_tokens=8,
        grad_norm=kl,
        lr=kl / 10,
        metrics={"kl": kl},
        by_staleness={int(name.removeprefix("s")): {"kl": value} for name, value in by_staleness.items()},
    )


REPORT = StepReport(
    step=3,
    version=4,
    ended_s=20.0,
    duration_s=10.0,
    first_update_s=None,
    usage=UsageTotals(busy_s={"update": 6.0}, idle_s={"reward": 4.0}, hidden_s=2.0),
    updates=(update(1.0, s0=1.0), update(3.0, s0=2.0, s1=4.0)),
    num_groups=2,
    num_reserves_used=0,
    dropped={},
    num_scored=4,
    failed={},
    score_mean=0.5,
    component_means={},
    response_tokens_mean=4.0,
    staleness_mean=0.5,
    staleness_max=1,
    reward_latency_mean_s=1.0,
    cost_usd=0.0,
)


def test_a_line_has_the_means_of_its_updates_and_each_of_them() -> None:
    line = REPORT.to_json()
    assert (line["kl"], line["grad_norm"], line["lr"], line["num_updates"]) == (2.0, 2.0, pytest.approx(0.3), 2)
    assert line["by_staleness"] == {"0": {"kl": 1.5}, "1": {"kl": 4.0}}
    assert [one["kl"] for one in line["mini_batches"]] == [1.0, 3.0]
    assert (line["exposed_s"], line["hidden_s"]) == (4.0, 2.0)


def test_a_step_without_an_update_has_no_learning_rate() -> None:
    line = dataclasses.replace(REPORT, updates=()).to_json()
    assert (line["lr"], line["grad_norm"], line["by_staleness"], line["mini_batches"]) == (None, None, {}, [])


def test_the_mean_of_nothing_is_unknown() -> None:
    assert mean_of([]) is None
    assert mean_of(iter([1.0, 2.0])) == 1.5
