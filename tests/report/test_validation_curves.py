"""What was measured on validation data, as charts."""

from __future__ import annotations

from rewardflow.report.curves import Curve
from rewardflow.report.steps import StepRow
from rewardflow.report.validation_curves import other_validation_curves, validation_curves


def drawn(curves: list[Curve], step: StepRow) -> dict[str, dict[str, float | None]]:
    return {curve.title: {line.name: line.of(step) for line in curve.lines} for curve in curves}


def test_figures_that_belong_together_are_one_chart_and_the_rest_comes_after() -> None:
    step = StepRow(
        step=4,
        measured={
            "score_mean": 0.5,
            "pass_share": 0.25,
            "pass@1": 0.25,
            "pass@4": 0.75,
            "component_means/judge": 1.0,
            "component_means/judge/is_clear": 2.0,
            "failed/rate_limited": 3.0,
            "num_prompts": 16.0,
            "pass@4_prompts": 15.0,
            "cost_usd": 0.1,
            "something_new": 7.0,
        },
    )
    assert drawn(validation_curves([step]), step) == {
        "Score": {"Score": 0.5},
        "Passed": {"of all responses": 0.25, "pass@1": 0.25, "pass@4": 0.75},
        "Components": {"judge": 1.0, "judge/is_clear": 2.0},
        "Failed verdicts": {"rate limited": 3.0},
    }
    assert drawn(other_validation_curves([step]), step) == {
        "num_prompts": {"num_prompts": 16.0},
        "pass@4_prompts": {"pass@4_prompts": 15.0},
        "something_new": {"something_new": 7.0},
    }


def test_a_kind_of_failure_that_is_not_told_did_not_happen() -> None:
    steps = [StepRow(step=0, measured={"failed/timeout": 2.0}), StepRow(step=1), StepRow(step=2, measured={"x": 1.0})]
    (curve,) = validation_curves(steps)
    assert [curve.lines[0].of(step) for step in steps] == [2.0, None, 0.0]


def test_data_sources_are_drawn_apart_after_all_of_them_together() -> None:
    names = ("openai/gsm8k/score_mean", "score_mean", "math/score_mean", "openai/gsm8k/component_means/a/b")
    step = StepRow(step=0, measured={name: float(place) for place, name in enumerate(names)})
    assert drawn(validation_curves([step]), step) == {
        "Score": {"Score": 1.0},
        "Score: math": {"Score": 2.0},
        "Score: openai/gsm8k": {"Score": 0.0},
        "Components: openai/gsm8k": {"a/b": 3.0},
    }
