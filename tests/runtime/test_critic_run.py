"""PPO with a critic, as a run: it learns, streams are bit-equal, and a run that broke off goes on as it would have."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_run import settings_of
from tiny_run import erratic_agent
from torch import Tensor

from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import EmbeddedRun, embedded
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    CriticSettings,
    DataSettings,
    GenerationSettings,
    RunSettings,
    TrainerSettings,
)

torch.set_num_threads(1)

FORMS = [CriticSettings(lr=3e-3), CriticSettings(form="head", lr=3e-3, trunk_weight=0.5)]
IDS = ["model", "head"]


class Cut(Exception):
    """The run ends here."""


def weights_of(run: EmbeddedRun) -> Tensor:
    """Of policy and critic."""
    critic = run.trainer.critic
    assert critic is not None
    parameters = [*run.policy.model.parameters(), *critic.model.parameters()]
    return torch.cat([weight.detach().flatten().clone() for weight in parameters])


def trained(settings: RunSettings, **options: Any) -> tuple[Tensor, list[StepReport]]:
    reports: list[StepReport] = []

    async def main() -> Tensor:
        async with embedded(settings, **{"on_step": reports.append, "probes": False, **options}) as run:
            await run.train()
            return weights_of(run)

    return asyncio.run(main()), reports


# ---- learning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", FORMS, ids=IDS)
def test_it_learns_to_copy_a_digit(critic: CriticSettings) -> None:
    async def compute_score(solution_str: str, ground_truth: str) -> float:
        return sum(a == b for a, b in zip(solution_str, ground_truth, strict=False)) / max(len(solution_str), 1)

    settings = RunSettings(
        reward="rule.py:compute_score",
        data=DataSettings(task="copy_digits", num_digits=1),
        schedule=Schedule(groups_per_step=32, mini_batches=2, order="fixed"),
        steps=25,
        generation=GenerationSettings(group_size=8, max_prompt_tokens=8, max_response_tokens=3),
        algorithm=AlgorithmSettings(advantage="gae", lam=0.95),
        trainer=TrainerSettings(lr=3e-3, threads=1),
        critic=critic,
    )
    _, reports = trained(settings, agent=RewardAgent(compute_score))
    scores = [report.score_mean or 0.0 for report in reports]
    assert statistics.fmean(scores[-5:]) > 5 * statistics.fmean(scores[:5])
    explained = [report.metrics["explained_variance"] for report in reports]
    assert statistics.fmean(explained[-5:]) > statistics.fmean(explained[:5])
    assert all(report.metrics["value_loss"] > 0 for report in reports)


# ---- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", FORMS, ids=IDS)
def test_with_a_fixed_order_policy_and_critic_are_bit_equal_for_every_stream_and_any_delays(
    critic: CriticSettings,
) -> None:
    schedule = Schedule(groups_per_step=8, mini_batches=2, order="fixed")
    settings = RunSettings(
        reward="rule.py:compute_score",
        data=DataSettings(task="copy_digits"),
        schedule=schedule,
        steps=3,
        generation=GenerationSettings(group_size=4, max_prompt_tokens=16, max_response_tokens=6),
        algorithm=AlgorithmSettings(advantage="gae", lam=0.9, whiten=False, kl_coef=0.05),
        trainer=TrainerSettings(lr=3e-3, max_grad_norm=0.05, micro_batch_tokens=120, threads=1),
        critic=replace(critic, clip=0.05, max_grad_norm=0.05, alone_steps=1),
    )
    found = [
        trained(replace(settings, schedule=schedule.changed(stream=stream)), agent=erratic_agent(delay_seed))
        for delay_seed, stream in enumerate(("batch", "mini_batch", "micro_batch"))
    ]
    assert all(torch.equal(found[0][0], other) for other, _ in found[1:])
    reports = found[0][1]
    assert sum(sum(report.failed.values()) for report in reports) > 0
    assert any(report.metrics["value_clipped"] > 0 for report in reports)
    assert ["policy_loss" in report.metrics for report in reports] == [False, True, True]


# ---- resuming -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", FORMS, ids=IDS)
def test_a_run_that_broke_off_goes_on_with_the_critic_it_had(tmp_path: Path, critic: CriticSettings) -> None:
    def settings_in(folder: Path) -> RunSettings:
        return settings_of(
            folder,
            steps=5,
            algorithm=AlgorithmSettings(advantage="gae", lam=0.9, whiten=False),
            critic=replace(critic, lr_schedule="cosine", alone_steps=1),
            trainer=TrainerSettings(lr=1e-3, threads=1, offload=critic.form == "model"),
        )

    def cut(report: StepReport) -> None:
        if report.step == 3:
            raise Cut

    expected, _ = trained(settings_in(tmp_path / "whole"))
    with pytest.raises(Cut):
        trained(settings_in(tmp_path / "broken"), on_step=cut)
    found, reports = trained(settings_in(tmp_path / "broken"), resume=True)
    assert [report.step for report in reports] == [2, 3, 4]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
