"""Warnings: when they are said, how often, and what they tell people to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.mini_batch_bias import MiniBatchBias
from rewardflow.flow.records import UpdateReport
from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.runtime.records.training_warnings import SANE, HealthWatch, SaneRange, findings, worst_findings
from rewardflow.settings.run_settings import AlgorithmSettings, DataSettings, RunSettings, TrainerSettings

WELL = {
    "trained_tokens": 1000.0,
    "engine_diff_mean": 0.001,
    "engine_diff_max": 0.1,
    "behaviour_kl_k3": 0.01,
    "effective_share": 0.95,
    "response_effective_share": 0.02,
    "clipped_low": 0.01,
    "clipped_high": 0.02,
    "clipped_dual": 0.0,
    "entropy": 0.8,
}
PIPELINE = Schedule(groups_per_step=8, mini_batches=4, stream="mini_batch", max_staleness=2)


def settings(schedule: Schedule = PIPELINE, trainer: TrainerSettings | None = None, **algorithm: Any) -> RunSettings:
    return RunSettings(
        reward="rule.py:compute_score",
        data=DataSettings(task="copy_digits"),
        schedule=schedule,
        steps=3,
        algorithm=AlgorithmSettings(**algorithm),
        trainer=trainer or TrainerSettings(),
    )


def causes(staleness: int = 0, run: RunSettings | None = None, **figures: float) -> list[str]:
    return [found.cause for found in findings({**WELL, **figures}, staleness, run or settings(), SANE)]


def report(step: int = 0, by_staleness: dict[int, dict[str, float]] | None = None, **figures: float) -> StepReport:
    update = UpdateReport(
        num_sequences=8,
        num_tokens=1000,
        grad_norm=1.0,
        lr=1e-6,
        by_staleness=by_staleness or {0: {**WELL, **figures}},
        mini_batch=3,
    )
    return StepReport(
        step=step,
        version=step + 1,
        ended_s=1.0,
        duration_s=1.0,
        first_update_s=None,
        usage=UsageTotals(busy_s={}, idle_s={}, hidden_s=0.0),
        updates=(update,),
        num_groups=8,
        num_reserves_used=0,
        dropped={},
        num_scored=64,
        failed={},
        score_mean=0.0,
        component_means={},
        response_tokens_mean=1.0,
        staleness_mean=0.0,
        staleness_max=0,
        reward_latency_mean_s=None,
        cost_usd=0.0,
    )


# -- what is out of range --


def test_sane_figures_give_no_warning() -> None:
    assert causes() == []


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({"engine_diff_mean": 0.021}, "engine"),
        ({"engine_diff_max": 0.9}, "engine_outlier"),
        ({"behaviour_kl_k3": 0.21}, "far"),
        ({"effective_share": 0.49}, "few_count"),
        ({"clipped_low": 0.1, "clipped_high": 0.09, "clipped_dual": 0.02}, "clipped"),
        ({"behaviour_capped": 0.1, "rejected": 0.11}, "left_out"),
        ({"entropy": 0.004}, "entropy"),
    ],
)
def test_each_figure_has_its_own_cause(figures: dict[str, float], cause: str) -> None:
    assert causes(**figures) == [cause]


@pytest.mark.parametrize("name", [name for name in WELL if name != "trained_tokens"])
def test_a_figure_that_is_not_there_is_not_complained_about(name: str) -> None:
    figures = {one: value for one, value in WELL.items() if one != name}
    assert list(findings(figures, 0, settings(), SANE)) == []


def test_few_tokens_say_nothing() -> None:
    assert causes(trained_tokens=199.0, effective_share=0.01) == []
    assert causes(trained_tokens=200.0, effective_share=0.01) == ["few_count"]


def test_the_engine_is_only_blamed_where_both_had_the_same_weights() -> None:
    assert causes(staleness=1, engine_diff_mean=0.5) == []
    took_them = settings(loss="decoupled", behaviour="trainer")
    assert causes(staleness=1, run=took_them, engine_diff_mean=0.5) == ["engine"]


def test_whole_responses_are_only_judged_where_they_are_weighed() -> None:
    assert causes(run=settings(behaviour_weights="sequence")) == ["few_responses_count"]


# -- what is said --


def test_a_warning_names_place_figure_bound_and_remedy() -> None:
    watch = HealthWatch(settings())
    steps = [report(step, {1: {**WELL, "effective_share": 0.31}}) for step in range(6)]
    (warning,) = [warning for step in steps for warning in watch.warnings(step)]
    assert warning == (
        "step 5, staleness 1: effective_share is 0.31, below 0.5: lower schedule.max_staleness (2), or let the "
        "learning rate fall (trainer.lr_schedule: linear), or lower trainer.lr (1e-06)"
    )


def remedy_of(run: RunSettings, **figures: float) -> str:
    (found,) = findings({**WELL, **figures}, 0, run, SANE)
    return found.remedy


def test_what_the_settings_have_already_is_not_offered() -> None:
    plain = settings(Schedule(groups_per_step=8), TrainerSettings(lr_schedule="cosine"))
    assert remedy_of(plain, effective_share=0.1) == "lower trainer.lr (1e-06)"
    corrected = settings(loss="decoupled")
    assert remedy_of(corrected, engine_diff_mean=0.1).endswith("(algorithm.behaviour: trainer)")
    rounded = settings(trainer=TrainerSettings(autocast="bfloat16"), loss="decoupled", behaviour="trainer")
    assert remedy_of(rounded, engine_diff_mean=0.1) == "compute in float32 (trainer.autocast: float32)"
    assert remedy_of(settings(reject="token", behaviour="trainer"), engine_diff_mean=0.1).startswith("look for what")


def test_the_trainers_log_probs_are_only_offered_where_they_are_used_and_can_be_taken() -> None:
    assert remedy_of(settings(), engine_diff_mean=0.1).startswith("look for what")
    apart = settings(PIPELINE.changed(placement="separate"), loss="decoupled")
    assert remedy_of(apart, engine_diff_mean=0.1).startswith("look for what")


@pytest.mark.parametrize("loss", ["ppo", "gspo", "policy_gradient"])
def test_no_correction_is_offered_because_none_was_shown_to_help(loss: str) -> None:
    run = settings(loss=loss)
    remedies = [remedy_of(run, engine_diff_mean=0.1), remedy_of(run, behaviour_kl_k3=0.3)]
    assert not any("decoupled" in remedy or "behaviour_weights" in remedy for remedy in remedies)


def test_many_clips_are_answered_with_a_lower_rate_first() -> None:
    schedule = Schedule(groups_per_step=8, mini_batches=2, epochs=3, stream="batch")
    assert remedy_of(settings(schedule), clipped_low=0.3) == ("lower trainer.lr (1e-06), or fewer schedule.epochs (3)")


# -- how often --


def told(watch: HealthWatch, *steps: dict[str, float]) -> list[int]:
    """Returns the numbers of the steps in which something was told."""
    return [number for number, figures in enumerate(steps) if watch.warnings(report(number, **figures))]


def test_a_cause_is_told_once_when_it_lasts_for_most_of_ten_steps() -> None:
    well, bad = {"effective_share": 0.9}, {"effective_share": 0.3}
    assert told(HealthWatch(settings()), *[well, bad] * 20) == []
    assert told(HealthWatch(settings()), well, *[bad] * 30, {"effective_share": 0.01}) == [6]
    assert told(HealthWatch(settings()), *[bad, bad, well] * 10) == [7]


def test_an_engine_that_computes_something_else_is_told_at_once() -> None:
    assert told(HealthWatch(settings()), {"engine_diff_max": 0.9}, {"engine_diff_max": 0.9}) == [0]


def test_causes_are_told_apart() -> None:
    watch = HealthWatch(settings())
    bad = [{"effective_share": 0.3}] * 6 + [{"effective_share": 0.3, "clipped_low": 0.5}] * 6
    assert told(watch, *bad) == [5, 11]


def test_of_a_step_the_worst_staleness_is_told() -> None:
    found = worst_findings(report(0, {0: {**WELL, "entropy": 0.004}, 1: {**WELL, "entropy": 0.001}}), settings())
    assert [(one.cause, one.value, one.where) for one in found.values()] == [("entropy", 0.001, "step 0, staleness 1")]


def test_bounds_can_be_others() -> None:
    assert told(HealthWatch(settings(), SaneRange(entropy=1.0)), *[{}] * 10) == [5]
    assert told(HealthWatch(settings(), SaneRange(entropy=0.0)), *[{"entropy": 0.0}] * 10) == []


def bias_warnings(run: RunSettings, *lengths: float, num_groups: int = 32) -> list[str]:
    watch = HealthWatch(run)
    steps = [replace(report(step), num_groups=num_groups) for step in range(len(lengths))]
    biases = [MiniBatchBias(length=length) for length in lengths]
    biased = [replace(one, mini_batch_bias=bias) for one, bias in zip(steps, biases, strict=True)]
    return [warning for one in biased for warning in watch.warnings(one)]


def test_mini_batches_that_differ_in_length_step_after_step_are_told_once_with_the_order_that_mixes_them() -> None:
    told = bias_warnings(settings(PIPELINE.changed(order="completion")), *[0.7] * 30)
    assert len(told) == 1
    assert "mini_batch_bias_length, in the mean of 2 steps, is 0.7, above 0.3" in told[0]
    assert told[0].endswith("train groups in the order of their prompts (schedule.order: fixed)")
    assert bias_warnings(settings(), *[-0.7] * 30)[0].endswith("in which prompts of one kind come together")


def test_a_bias_that_chance_explains_is_not_told() -> None:
    assert bias_warnings(settings(), *[0.5, -0.5] * 15) == []
    assert bias_warnings(settings(), 0.9, 0.9, num_groups=4) == []  # two steps of four groups say nothing
