"""Validation figures: every mean leaves out failed verdicts, and pass@k is unbiased."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.flow.records import Prompt
from rewardflow.flow.validation.validation_plan import ValidationPlan
from rewardflow.flow.validation.validation_report import (
    ValidationFigures,
    ValidationReport,
    by_data_source,
    chance_of_a_pass,
    figures_of,
    names_of_figures,
)
from rewardflow.types import Reward, Rollout, ScoredGroup


def group_of(scores: Sequence[float | None], *, source: str = "", length: int = 3, **reward: object) -> ScoredGroup:
    size = len(scores)
    rollouts = tuple(
        Rollout(
            group_id="g",
            index=index,
            group_size=size,
            response="x",
            data_source=source,
            response_mask=array("b", [0] + [1] * length),
            extra_info={"truncated": True} if index == 0 and length > 3 else {},
        )
        for index in range(size)
    )
    rewards = tuple(Reward(value=score, kind="timeout" if score is None else None, **reward) for score in scores)  # type: ignore[arg-type]
    return ScoredGroup(group_id="g", step=0, group_size=size, rollouts=rollouts, rewards=rewards)


def figures(*groups: ScoredGroup, ks: Sequence[int] = (), passes_from: float = 1.0) -> ValidationFigures:
    size = groups[0].group_size if groups else 1
    return figures_of(groups, group_size=size, ks=ks, passes_from=passes_from)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_draws_of_k_that_have_a_pass(num_scored: int, data: st.DataObject) -> None:
    num_passed = data.draw(st.integers(0, num_scored))
    k = data.draw(st.integers(1, num_scored))
    passed = [i < num_passed for i in range(num_scored)]
    draws = [any(draw) for draw in itertools.combinations(passed, k)]
    assert chance_of_a_pass(num_scored, num_passed, k) == pytest.approx(sum(draws) / len(draws))


def test_a_failed_verdict_is_in_no_mean_and_is_counted_by_kind() -> None:
    found = figures(group_of([1.0, 0.0, None, None]), group_of([1.0, 1.0, 1.0, None]), ks=(1, 2, 3))
    assert found.score_mean == pytest.approx(4 / 5)
    assert found.pass_share == pytest.approx(4 / 5)
    assert found.mean_at_n == pytest.approx((0.5 + 1.0) / 2)
    assert (found.num_rollouts, found.num_scored, found.failed) == (8, 5, {"timeout": 3})
    assert [(one.k, one.num_prompts) for one in found.pass_at] == [(1, 2), (2, 2), (3, 1)]
    assert [one.value for one in found.pass_at] == pytest.approx([0.75, 1.0, 1.0])


def test_where_everything_failed_there_is_no_mean_rather_than_zero() -> None:
    found = figures(group_of([None, None]), ks=(2,)).to_json()
    assert [found[name] for name in ("score_mean", "mean@2", "pass_share", "pass@2")] == [None] * 4
    assert (found["num_failed"], found["failed/timeout"], found["pass@2_prompts"]) == (2, 2, 0)


def test_a_score_passes_from_the_threshold_on() -> None:
    found = figures(group_of([0.5, 0.49, 0.9, 0.0]), passes_from=0.5)
    assert found.pass_share == pytest.approx(0.5)


def test_components_lengths_and_cost_are_told() -> None:
    found = figures(
        group_of([1.0, None], components={"rule": 1.0, "judge": 0.5}, cost_usd=0.25),
        group_of([0.0, 0.0], components={"rule": 0.0, "judge": None}, length=7),
    )
    assert found.component_means == {"rule": pytest.approx(1 / 3), "judge": 0.5}
    assert found.response_tokens_mean == pytest.approx(5.0)
    assert found.truncated_share == pytest.approx(0.25)
    assert found.cost_usd == pytest.approx(0.5)


def test_metrics_are_told_overall_and_by_data_source_where_there_are_several() -> None:
    groups = (group_of([1.0], source="gsm8k"), group_of([0.0], source="math"))
    plan = ValidationPlan(prompts=(Prompt(uid="0"),), ks=(1,))
    report = ValidationReport(
        version=7,
        ended_s=2.0,
        duration_s=1.0,
        generate_s=0.5,
        overall=figures(*groups, ks=(1,)),
        by_source=by_data_source(groups, plan),
    )
    line = json.loads(json.dumps(report.to_metrics_json()))
    assert (line["v"], line["step"], line["version"], line["source"]) == (1, 7, 7, "validation")
    names = ("validation/score_mean", "validation/gsm8k/score_mean", "validation/math/pass@1")
    assert [line[name] for name in names] == [0.5, 1.0, 0.0]
    assert json.loads(json.dumps(report.to_json()))["by_source"]["gsm8k"]["mean@1"] == 1.0
    alone = ValidationReport(
        version=7,
        ended_s=2.0,
        duration_s=1.0,
        generate_s=0.5,
        overall=report.overall,
        by_source={"gsm8k": groups[0]},  # type: ignore[dict-item]
    )
    assert not any("gsm8k" in name for name in alone.metrics)


def test_the_names_that_a_run_may_be_judged_by_are_there_whatever_happened() -> None:
    names = names_of_figures(4, (1, 4))
    assert {"score_mean", "mean@4", "pass_share", "pass@1", "pass@4", "response_tokens_mean"} <= names
    assert names <= set(figures_of((group_of([None] * 4),), group_size=4, ks=(1, 4), passes_from=1.0).to_json())
