"""Seeds that train together learn what each of them learns in an ordinary run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rewardflow.bench.learning.copying_runs import copying_settings, grade
from rewardflow.bench.learning.stacked_runs import train_together
from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import embedded
from rewardflow.settings.copying_run import ALGORITHM, TRAINER
from rewardflow.settings.run_settings import RunSettings
from rewardflow.types import Reward, Rollout

SEEDS = (3, 11)


def settings_of(schedule: str = "one_step", *, steps: int = 4, **changes: Any) -> RunSettings:
    """A short run that learns fast, so that every update shows in the scores of the next steps.

    Adam's first update is as large for a gradient of 1e-9, which is rounding alone, as for one of 1; a large `eps`
    leaves such gradients out.
    """
    return copying_settings(
        schedule,
        seed=0,
        steps=steps,
        task="copy_numbers",
        groups_per_step=8,
        group_size=4,
        algorithm=replace(ALGORITHM, **changes),
        trainer=replace(TRAINER, lr=0.03, eps=1e-2),
    )


async def grade_at_once(rollout: Rollout) -> Reward:
    return grade(rollout)


def ordinary_run(settings: RunSettings) -> list[StepReport]:
    async def train() -> list[StepReport]:
        reports: list[StepReport] = []
        async with embedded(settings, agent=RewardAgent(grade_at_once), on_step=reports.append) as run:
            await run.train()
        return reports

    return asyncio.run(train())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "cispo", "ratio_to": "behaviour", "clip_high": 1.0},
        {"loss": "decoupled", "mask_truncated": True, "aggregation": "seq_mean_token_mean", "scale": "batch"},
    ],
    ids=["ppo", "cispo", "decoupled"],
)
def test_seeds_that_train_together_score_as_each_of_them_alone(changes: dict[str, Any]) -> None:
    settings = settings_of(**changes)
    together = train_together(settings, SEEDS)
    for seed, steps in zip(SEEDS, together, strict=True):
        alone = ordinary_run(replace(settings, seed=seed))
        assert [step.score for step in steps] == pytest.approx([report.score_mean for report in alone], abs=1e-6)
        assert [step.exact for step in steps] == pytest.approx([r.component_means["exact"] for r in alone], abs=1e-6)
        for figure in ("entropy", "behaviour_kl_k3", "effective_share"):
            pairs = [
                (getattr(step, figure), report.metrics.get(figure)) for step, report in zip(steps, alone, strict=True)
            ]
            for measured, expected in pairs:
                assert expected is None or measured == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_seed_does_not_depend_on_the_seeds_beside_it() -> None:
    settings = settings_of(steps=3)
    beside, alone = train_together(settings, SEEDS)[1], train_together(settings, SEEDS[1:])[0]
    assert [step.score for step in beside] == pytest.approx([step.score for step in alone], abs=1e-6)


def test_an_engine_that_rounds_generates_other_responses() -> None:
    settings = settings_of(steps=2)
    exact, rounded = (train_together(settings, SEEDS, engine=dtype) for dtype in ("float32", "float8_e4m3fn"))
    assert exact != rounded


def test_what_cannot_be_trained_together_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"algorithm.kl_coef=0.1"):
        train_together(settings_of(kl_coef=0.1), SEEDS)
