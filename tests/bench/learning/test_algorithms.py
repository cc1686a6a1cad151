"""The benchmark of algorithms at tiny sizes; the figures themselves are measured by hand, not by tests."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from rollouts import rollout

import rewardflow.clock
from rewardflow.bench.learning.algorithms import (
    AlgorithmFigures,
    GradedRule,
    Variant,
    measure,
    report_of,
    rows_of,
    variants,
)
from rewardflow.cli.bench import holds
from rewardflow.flow.records import GREEDY
from rewardflow.settings.algorithm_needs import ADVANTAGES
from rewardflow.settings.run_settings import Aggregation, AlgorithmSettings, LossKlEstimator, RejectBy, WeighBy

GOOD = AlgorithmFigures(name="base", judged_by="exact", seed=0, steps=160, exact=0.95, pass_at_k=1.0, seconds=30.0)


def chosen(setting: str) -> set[object]:
    return {variant.changes.get(setting, getattr(AlgorithmSettings(), setting)) for variant in variants()}


def test_every_choice_that_a_run_can_make_is_a_row() -> None:
    assert chosen("advantage") == set(ADVANTAGES)
    assert chosen("scale") == {"group", "batch", "none"}
    assert chosen("loss") == {"ppo", "decoupled", "cispo", "gspo", "policy_gradient"}
    assert chosen("ratio_to") == {"old", "behaviour"}
    assert chosen("mask_truncated") == {False, True}
    assert chosen("aggregation") == set(get_args(Aggregation))
    assert chosen("kl_estimator") == set(get_args(LossKlEstimator))
    assert chosen("behaviour_weights") == {None, *get_args(WeighBy)}
    assert chosen("reject") == {None, *get_args(RejectBy)}
    assert {0.0, 0.01} <= chosen("reward_kl_coef")
    assert len(chosen("reward_kl_target")) == 2


def test_rows_differ_from_the_base_in_what_they_name_alone() -> None:
    every = list(variants())
    assert len({variant.name for variant in every}) == len(every)
    base = every[0].settings(seed=0, steps=9, rollouts_per_step=64)
    for variant in every:
        settings = variant.settings(seed=0, steps=9, rollouts_per_step=64)
        assert settings.algorithm == replace(base.algorithm, **variant.changes)
        assert (settings.generation == base.generation) == ("group_size=" not in variant.name)
        assert (settings.critic == base.critic) == ("critic.lr=" not in variant.name)
        assert (settings.schedule.max_staleness == 1) == ("schedule=" not in variant.name)
        assert replace(settings, algorithm=base.algorithm, critic=base.critic, generation=base.generation) == replace(
            base, schedule=settings.schedule
        )


def test_every_row_trains_on_as_many_rollouts_and_updates_a_step() -> None:
    for variant in variants():
        settings = variant.settings(seed=0, steps=9, rollouts_per_step=64)
        assert settings.schedule.groups_per_step * settings.generation.group_size == 64
        assert settings.schedule.mini_batches == 4


def test_a_prompt_is_answered_once_where_nothing_else_about_it_is_compared() -> None:
    once = [variant for variant in variants() if variant.group_size == 1]
    assert [variant.changes["advantage"] for variant in once] == ["reinforce_plus_plus", "gae"]


@pytest.mark.parametrize("advantage", ["grpo", "grpo_passk", "remax", "gae"])
def test_a_run_reports_what_was_right_of_its_last_steps(advantage: str) -> None:
    figures = measure(Variant(changes={"advantage": advantage}), seed=3, steps=2, rollouts_per_step=64)
    assert (figures.seed, figures.steps) == (3, 2)
    assert 0.0 <= figures.exact <= figures.pass_at_k < 0.9
    assert figures.seconds > 0


def test_the_greedy_answer_that_others_are_compared_with_is_scored_and_not_counted() -> None:
    rule = GradedRule()
    sampled = rollout("41", "40", step=7, group_size=2, extra_info={GREEDY: False})
    greedy = replace(sampled, index=1, response="40", extra_info={GREEDY: True})

    async def score() -> list[float | None]:
        return [(await rule.compute_score(one)).value for one in (sampled, greedy)]

    assert rewardflow.clock.run(score()) == [0.5, 1.0]
    assert rule.grades == {7: {"q": [False]}}


def test_the_best_of_a_group_is_judged_by_its_best() -> None:
    passk = replace(GOOD, name="advantage=grpo_passk", judged_by="pass_at_k", exact=0.2, pass_at_k=0.97)
    bad = replace(GOOD, name="loss=gspo", exact=0.5)
    assert [holds(row) for row in rows_of([GOOD, passk, bad])] == [True, True, False]
    assert {variant.judged_by for variant in variants() if variant.changes.get("advantage") == "grpo_passk"} == {
        "pass_at_k"
    }


def test_the_report_has_the_runs_and_the_rows() -> None:
    report = report_of(iter([GOOD]))
    assert report["algorithms"] == [GOOD.to_json()]
    assert len(report["rows"]) == 1
