"""Whole runs of one process with Megatron's trainer: they learn, go on after a crash, and refuse what they cannot."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from cpu_shim import pretend_in_every_thread

from rewardflow.bench.learning.copying_runs import DelayedRule, copying_settings
from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import embedded
from rewardflow.settings.run_settings import CheckpointSettings, MegatronSettings, RunSettings, TrainerSettings

SCHEDULES = ("pipeline", "one_step")


class Cut(Exception):
    """The run ends here."""


def settings_of(schedule: str, steps: int) -> RunSettings:
    whole = copying_settings(schedule, seed=0, steps=steps, groups_per_step=8, group_size=16, num_digits=1)
    return replace(whole, trainer=replace(whole.trainer, lr=3e-3, lr_schedule="constant", backend="megatron"))


async def train(settings: RunSettings, *, cut_after: int | None = None, resume: bool = False) -> dict[str, Any]:
    reports: list[StepReport] = []

    def on_step(report: StepReport) -> None:
        reports.append(report)
        if report.step == cut_after:
            raise Cut

    agent = RewardAgent(DelayedRule(seed=settings.seed), max_concurrency=256)
    async with embedded(settings, agent=agent, on_step=on_step, resume=resume) as run:
        await run.train()
        weights = {name: weight.detach().clone() for name, weight in run.policy.model.named_parameters()}
    return {"scores": [report.score_mean for report in reports], "weights": weights}


def run_child(_: int, directory: str) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    pretend_in_every_thread()
    folder = Path(directory)
    found = {schedule: asyncio.run(train(settings_of(schedule, steps=80))) for schedule in SCHEDULES}
    short = settings_of("one_step", steps=4)
    fixed = replace(short.schedule, order="fixed")
    whole, cut = (
        replace(short, schedule=fixed, run_dir=folder / name, checkpoint=CheckpointSettings(every=1))
        for name in ("whole", "cut")
    )
    found["whole"] = asyncio.run(train(whole))
    with pytest.raises(Cut):
        asyncio.run(train(cut, cut_after=2))
    found["resumed"] = asyncio.run(train(cut, resume=True))
    torch.save(found, folder / "found.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("runs")
    torch.multiprocessing.spawn(run_child, args=(str(directory),), nprocs=1)
    return torch.load(directory / "found.pt", weights_only=False)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_reward_rises(schedule: str, found: dict[str, Any]) -> None:
    scores = found[schedule]["scores"]
    assert fmean(scores[-5:]) > fmean(scores[:5]) + 0.15


def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(found: dict[str, Any]) -> None:
    whole, resumed = found["whole"], found["resumed"]
    assert 0 < len(resumed["scores"]) < len(whole["scores"])
    assert resumed["scores"] == whole["scores"][-len(resumed["scores"]) :]
    assert all(torch.equal(resumed["weights"][name], whole["weights"][name]) for name in whole["weights"])


def test_a_model_of_several_ranks_is_refused_in_one_process() -> None:
    settings = settings_of("one_step", steps=1)
    trainer = TrainerSettings(backend="megatron", megatron=MegatronSettings(tensor_parallel=2))
    with pytest.raises(InvalidInput, match=r"all sizes of trainer.megatron must be 1, got 2 ranks"):
        asyncio.run(train(replace(settings, trainer=trainer)))


@pytest.mark.filterwarnings("ignore")  # importing megatron-core warns of what is not installed
def test_a_machine_without_a_gpu_is_told_that_megatron_needs_one() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InvalidInput, match=r"needs a CUDA GPU for each rank, got cpu"):
        asyncio.run(train(settings_of("one_step", steps=1)))
