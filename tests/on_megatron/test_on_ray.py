"""Megatron's ranks as actors on real Ray: they train what one process does, learn, and go on after a crash."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import ray
import torch
from cluster_runs import checkpoint_of, losses, metrics_in, on_ray, settings_in, train, weights_of
from ray_here import one_node
from torch import Tensor
from transformers import AutoModelForCausalLM

from rewardflow.checkpoint.exported_model import export_policy
from rewardflow.errors import ClusterError, InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.runtime.open_run import OpenRun, open_run
from rewardflow.settings.run_settings import (
    CheckpointSettings,
    MegatronSettings,
    RunSettings,
    RuntimeSettings,
    TrainerSettings,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, and megatron-core's when it is imported

torch.set_num_threads(1)

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A node whose processes see the CPU where megatron-core names a GPU; the product starts them without that."""
    environment = {
        "env_vars": {"PYTHONPATH": os.pathsep.join((str(HERE), str(SOURCE)))},
        "worker_process_setup_hook": "cpu_shim.pretend_in_every_thread",
    }
    with one_node(num_cpus=8, runtime_env=environment):
        yield


def trained_by(lr: float = 1e-3, **sizes: int) -> TrainerSettings:
    """As `settings_in` trains, by Megatron."""
    megatron = MegatronSettings(**sizes)
    return TrainerSettings(lr=lr, eps=1e-3, threads=1, micro_batch_tokens=64, backend="megatron", megatron=megatron)


def train_until_killed(settings: RunSettings, after_step: int) -> None:
    """The process of the last rank gets a SIGKILL then."""
    ranks: list[int] = []

    def kill(report: StepReport) -> None:
        if report.step == after_step:
            os.kill(ranks[-1], signal.SIGKILL)

    async def run() -> None:
        async with open_run(settings, probes=False, on_step=kill) as opened:
            trainer: Any = opened.parts.trainer
            ranks.extend(place.pid for place in trainer.places)
            await opened.train()

    asyncio.run(run())


def exported(settings: RunSettings, folder: Path) -> dict[str, Tensor]:
    """As transformers loads what `rewardflow export` makes of the run's last checkpoint."""
    export_policy(checkpoint_of(settings), folder)
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def weights_of_generators(opened: OpenRun) -> list[dict[str, Tensor]]:
    """Those that every engine generates with, asked of its process."""
    generator: Any = opened.parts.generator

    def found(actor: Any) -> dict[str, Any]:
        model = actor._engine._policy.model
        return {name: weight.detach().clone() for name, weight in model.named_parameters()}

    return ray.get([actor.__ray_call__.remote(found) for actor in generator._engines.actors])


def test_ranks_train_what_fsdp2_does_also_when_one_is_killed_and_others_in_another_layout_go_on(tmp_path: Path) -> None:
    alone = settings_in(tmp_path / "alone", runtime=RuntimeSettings())
    train(alone)
    saved = CheckpointSettings(every=1)
    first = settings_in(tmp_path, trainer=trained_by(tensor_parallel=2), checkpoint=saved, runtime=on_ray(4))
    with pytest.raises(ClusterError, match=r"^rank 3 of 4 \(node \S+, process \d+\) went away: "):
        train_until_killed(first, after_step=2)
    assert 1 <= checkpoint_of(first).step <= 3
    again = settings_in(tmp_path, trainer=trained_by(pipeline_parallel=2), checkpoint=saved, runtime=on_ray(2))
    train(again, resume=True)
    assert [line["step"] for line in metrics_in(again)] == list(range(5))
    assert len(set(losses(alone))) > 20
    assert losses(again) == pytest.approx(losses(alone), abs=1e-4)
    torch.testing.assert_close(weights_of(again), weights_of(alone), atol=2e-5, rtol=0)
    for name in ("score_mean", "grad_norm"):
        found = [line[name] for line in metrics_in(again)]
        assert found == pytest.approx([line[name] for line in metrics_in(alone)], rel=1e-4), name


PIPELINE = Schedule(groups_per_step=8, mini_batches=2, stream="mini_batch", placement="separate")
ONE_STEP = Schedule(groups_per_step=8, mini_batches=2, stream="batch", max_staleness=1)


@pytest.mark.parametrize(
    ("sizes", "schedule"),
    [({"tensor_parallel": 2}, PIPELINE), ({"pipeline_parallel": 2}, ONE_STEP)],
    ids=["tp2_pipeline", "pp2_one_step"],
)
def test_the_reward_rises_and_generators_have_the_weights_that_are_exported(
    tmp_path: Path, sizes: dict[str, int], schedule: Schedule
) -> None:
    trainer = trained_by(lr=5e-3, **sizes)
    settings = settings_in(tmp_path, "sevens", schedule=schedule, trainer=trainer, steps=12, runtime=on_ray(2))
    generators = train(settings, look=weights_of_generators)
    lines = metrics_in(settings)
    assert [line["staleness_max"] for line in lines] == [0, *[schedule.max_staleness] * 11]
    scores = [line["score_mean"] for line in lines]
    assert fmean(scores[-3:]) > fmean(scores[:3]) + 0.2
    weights = exported(settings, tmp_path / "exported")
    assert len(generators) == (2 if schedule.placement == "colocated" else 1)
    for generator in generators:
        assert generator.keys() == weights.keys()
        assert all(torch.equal(generator[name], weights[name]) for name in weights)


def test_a_cluster_that_is_too_small_is_told_how_the_ranks_come_to_be_so_many(tmp_path: Path) -> None:
    trainer = trained_by(tensor_parallel=2, pipeline_parallel=2)
    layout = r"12 ranks: tensor 2 x pipeline 2 x context 1 x data 3"
    with pytest.raises(InvalidInput, match=rf"needs 12 processes with 1 CPU each \({layout}\), .* room for 8 "):
        train(settings_in(tmp_path, trainer=trainer, runtime=on_ray(12)))


def test_a_model_that_cannot_be_cut_like_that_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(
        InvalidInput, match=r"num_hidden_layers must be a multiple of trainer.megatron.pipeline_parallel"
    ):
        train(settings_in(tmp_path, trainer=trained_by(pipeline_parallel=4), runtime=on_ray(4)), tell=told.append)
    assert not any(line.startswith("waiting for") for line in told)
