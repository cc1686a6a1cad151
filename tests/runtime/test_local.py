"""Runs of the tiny policy from start to end, with everything that they write down."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import calls_in, settings_in

from rewardflow.errors import InvalidInput, RewardLoadError
from rewardflow.flow.schedule import Schedule, Stream
from rewardflow.observe.run_directory import read_events, read_steps
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import device_of, embedded, for_device_here, prepared_device
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)

torch.set_num_threads(1)

EVERYTHING = AlgorithmSettings(kl_coef=0.01, entropy_coef=0.001)


def train(settings: RunSettings, **options: Any) -> None:
    async def run() -> None:
        async with embedded(settings, **options) as run:
            await run.train()

    asyncio.run(run())


def metrics_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("stream", ["batch", "mini_batch", "micro_batch"])
def test_every_schedule_writes_one_line_for_each_step_with_all_that_people_ask_for(
    tmp_path: Path, stream: Stream, max_staleness: int
) -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, stream=stream, max_staleness=max_staleness)
    train(settings_in(tmp_path, schedule=schedule, algorithm=EVERYTHING, run_dir=tmp_path / "run"))
    lines = metrics_in(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert [line["version"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["staleness_max"] == min(line["step"], max_staleness)
        assert line["staleness_mean"] == line["staleness_max"]
        labelled_s = sum(line["busy_s"].values()) + sum(line["idle_s"].values())
        assert labelled_s == pytest.approx(line["duration_s"], abs=0.01)
        assert set(line["busy_s"]) >= {"log_probs", "update"}
        assert line["exposed_s"] == line["idle_s"].get("reward", 0.0)
        assert line["hidden_s"] >= 0
        assert (line["num_groups"], line["num_scored"], line["failed"], line["dropped"]) == (4, 16, {}, {})
        assert line["score_mean"] < 0
        assert 1 <= line["response_tokens_mean"] <= 5
        assert line["cost_usd"] == pytest.approx(0.16)
        assert line["num_updates"] == len(line["mini_batches"]) == 2
        for name in ("kl", "kl_old_k3", "entropy", "clipped_low", "clipped_high", "policy_loss"):
            assert isinstance(line[name], float)
        assert line["entropy"] > 0
    assert sum(line["busy_s"].get("generate", 0.0) for line in lines) > 0


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_each_mini_batch_tells_its_figures_under_its_index_and_the_staleness_of_its_rollouts(
    tmp_path: Path, max_staleness: int
) -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, epochs=2, stream="batch", max_staleness=max_staleness)
    train(settings_in(tmp_path, schedule=schedule, steps=4, run_dir=tmp_path / "run"))
    for line in metrics_in(tmp_path / "run"):
        staleness = str(min(line["step"], max_staleness))
        assert list(line["by_staleness"]) == [staleness]
        updates = line["mini_batches"]
        assert [(one["epoch"], one["mini_batch"]) for one in updates] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        for update in updates:
            ((found, figures),) = update["by_staleness"].items()
            assert found == staleness
            assert {name: update[name] for name in figures} == pytest.approx(figures)
        assert line["effective_share"] == pytest.approx(sum(one["effective_share"] for one in updates) / 4)
        assert line["behaviour_ratio_max"] == max(one["behaviour_ratio_max"] for one in updates)
        assert line["behaviour_ratio_min"] == min(one["behaviour_ratio_min"] for one in updates)
        # Before its first update a step has the weights that it is held against; the engine computes as the trainer.
        assert updates[0]["kl_old_k3"] == pytest.approx(0.0, abs=1e-6)
        assert updates[3]["kl_old_k3"] > 1e-5
        assert (updates[0]["behaviour_kl_k3"] < 1e-6) == (staleness == "0")
        assert (line["engine_diff_max"] < 1e-5) == (staleness == "0")


def test_the_trainers_own_log_probs_tell_engine_and_staleness_apart(tmp_path: Path) -> None:
    algorithm = AlgorithmSettings(loss="decoupled", behaviour="trainer")
    train(settings_in(tmp_path, algorithm=algorithm, run_dir=tmp_path / "run"))
    last = metrics_in(tmp_path / "run")[-1]
    assert last["staleness_max"] == 1
    assert last["engine_diff_max"] < 1e-5
    assert last["behaviour_kl_k3"] > 1e-5


def test_calls_tokens_a_second_and_memory_are_in_the_metrics(tmp_path: Path) -> None:
    train(settings_in(tmp_path, run_dir=tmp_path / "run"))
    lines = metrics_in(tmp_path / "run")
    assert sum(line["num_calls"] for line in lines) == len(calls_in(tmp_path)) - 1  # without the sample
    assert [line["num_retries"] for line in lines] == [0, 0, 0]
    assert all(line["memory_peak_bytes"] > 1e7 for line in lines)
    assert all(line["trained_tokens_per_s"] > 0 for line in lines)
    assert lines[0]["generated_tokens_per_s"] > 0
    assert lines[-1]["generated_tokens_per_s"] is None  # everything was generated before


def test_a_figure_out_of_range_is_in_the_log_and_in_the_metrics_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wild = TrainerSettings(lr=0.03, threads=1)
    generation = GenerationSettings(group_size=8, max_prompt_tokens=8, max_response_tokens=20)
    schedule = Schedule(groups_per_step=8, mini_batches=2, stream="mini_batch")
    run_dir = tmp_path / "run"
    train(
        settings_in(
            tmp_path,
            trainer=wild,
            schedule=schedule,
            generation=generation,
            algorithm=AlgorithmSettings(clip_low=1e-9, clip_high=1e-9, entropy_coef=1.0),
            steps=8,
            run_dir=run_dir,
        )
    )
    written = [warning for line in metrics_in(tmp_path / "run") for warning in line["warnings"]]
    logged = [record.message for record in caplog.records if record.name == "rewardflow.runtime.records.step_checks"]
    assert written == logged
    assert any("clipped tokens" in warning and "lower trainer.lr (0.03)" in warning for warning in written)


def test_verdicts_that_fail_are_counted_and_their_groups_dropped(tmp_path: Path) -> None:
    train(settings_in(tmp_path, "refusing_later", steps=1, run_dir=tmp_path / "run"))
    (line,) = metrics_in(tmp_path / "run")
    assert (line["failed"], line["dropped"]) == ({"service": 16}, {"too_few_verdicts": 4})
    assert (line["num_scored"], line["score_mean"]) == (0, None)


def test_the_sample_that_comes_first_is_neither_in_the_journal_nor_in_the_ledger_nor_in_the_events(
    tmp_path: Path,
) -> None:
    train(settings_in(tmp_path, steps=1, run_dir=tmp_path / "run"))
    asked = calls_in(tmp_path)
    assert [group for group in asked if group.startswith("sample")] == asked[:1]
    assert len(asked) == 1 + 16
    assert read_steps(tmp_path / "run")[0]["reward"]["cost_usd"] == pytest.approx(0.16)
    groups = {getattr(event, "group_id", None) for event in read_events(tmp_path / "run")}
    assert groups == {None, "0", "1", "2", "3"}


def test_no_sample_is_asked_about_without_probes_nor_of_an_agent_that_is_given(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, steps=1)
    train(settings, probes=False)
    train(settings, agent=RewardAgent(settings.reward))
    assert len(calls_in(tmp_path)) == 2 * 16


def test_the_settings_are_kept_with_the_run(tmp_path: Path) -> None:
    train(settings_in(tmp_path, steps=1, run_dir=tmp_path / "run", limits={"max_concurrency": 5}))
    kept = json.loads((tmp_path / "run" / "settings.json").read_text("utf-8"))
    assert (kept["steps"], kept["limits"], kept["trainer"]["lr"]) == (1, {"max_concurrency": 5}, 1e-3)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"reward": "broken"}, RewardLoadError),
        ({"policy": PolicySettings(model="./nowhere")}, InvalidInput),
        ({"policy": PolicySettings(tiny_hidden=7)}, InvalidInput),
    ],
)
def test_a_run_that_cannot_start_leaves_no_directory_behind(
    tmp_path: Path, changes: dict[str, Any], kind: type[Exception]
) -> None:
    settings = settings_in(tmp_path, **{"run_dir": tmp_path / "run", **changes})
    with pytest.raises(kind):
        train(settings)
    assert not (tmp_path / "run").exists()


def test_a_second_run_in_the_same_directory_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, steps=1, run_dir=tmp_path / "run")
    train(settings)
    num_calls = len(calls_in(tmp_path))
    with pytest.raises(InvalidInput, match="holds a run already"):
        train(dataclasses.replace(settings, seed=1))
    assert len(calls_in(tmp_path)) == num_calls


@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_a_device_that_is_no_cpu_multiplies_float32_as_the_settings_say(
    tmp_path: Path, tf32: bool, precision: str
) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        settings = settings_in(tmp_path, trainer=TrainerSettings(device="meta", tf32=tf32))
        prepared_device(settings)
        assert torch.get_float32_matmul_precision() == precision
        assert for_device_here(settings).trainer.autocast == "bfloat16"
    finally:
        torch.set_float32_matmul_precision(before)


def test_on_a_cpu_precision_stays_as_it_is(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, trainer=TrainerSettings(device="cpu"))
    before = torch.get_float32_matmul_precision()
    prepared_device(settings)
    assert torch.get_float32_matmul_precision() == before
    assert for_device_here(settings) == settings


def test_a_build_for_gpus_on_a_machine_without_one_computes_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accelerator_of_build(check_available: bool = False) -> torch.device | None:
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", accelerator_of_build)
    settings = settings_in(tmp_path)
    settings = dataclasses.replace(settings, trainer=dataclasses.replace(settings.trainer, device="auto"))
    assert device_of(settings) == torch.device("cpu")


def test_an_accelerator_without_numbers_of_64_bits_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    settings = settings_in(tmp_path)
    settings = dataclasses.replace(settings, trainer=dataclasses.replace(settings.trainer, device="auto"))
    assert device_of(settings) == torch.device("cpu")
