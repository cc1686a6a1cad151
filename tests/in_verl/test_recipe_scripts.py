"""Both scripts of the recipe async_reward_agent on both engines, whole, with other paths and sizes."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
import verl_job
from verl_job import Materials, Outcome, ended_well
from verl_recipe_lines import TESTING_FSDP2, TESTING_MEGATRON, TRAINING_FSDP2, TRAINING_MEGATRON, Script

CLASS = "custom_reward_function.name=Gsm8kAgent"


def smaller(materials: Materials) -> list[str]:
    """Returns paths, sizes and a logger that a test can read: what a user of the script would change."""
    return [
        f"data.train_files={materials.prompts}",
        f"data.val_files={materials.prompts}",
        f"actor_rollout_ref.model.path={materials.model}",
        f"custom_reward_function.path={verl_job.REWARDS}",
        "data.train_batch_size=4",
        "data.max_prompt_length=64",
        "data.max_response_length=16",
        "data.val_max_samples=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=10",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=10",
        "trainer.total_training_steps=2",
        "trainer.logger=[console,file]",
        f"trainer.project_name={verl_job.PROJECT}",
        f"trainer.experiment_name={verl_job.EXPERIMENT}",
    ]


def run_script(
    script: Script, materials: Materials, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> tuple[Outcome, list[list[list[str]]]]:
    """Runs the script on this machine. Returns the outcome, and what the reward's own `log` wrote."""
    log = folder / "log.jsonl"
    monkeypatch.setenv("RECIPE_LOG", str(log))
    is_on_megatron = script.config_name is not None
    on_cpu = (
        [*verl_job.megatron_layers("actor_rollout_ref.actor"), "trainer.n_gpus_per_node=2"]
        if is_on_megatron
        else [
            *verl_job.FSDP2_ON_CPU,
            "trainer.n_gpus_per_node=1",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        ]
    )
    outcome = ended_well(
        folder / "run",
        [*script.options(), *script.words, *smaller(materials), *verl_job.FEW_PROCESSES, *on_cpu, *more],
        modules=("verl_cpu_megatron",) if is_on_megatron else (),
    )
    return outcome, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def assert_trained(outcome: Outcome) -> None:
    assert outcome.column("rewardflow/verdicts/scored") == [20, 20]  # four prompts with the script's five rollouts
    assert outcome.column("rewardflow/staleness/max") == [0, 1]
    assert all(norm > 0 for norm in outcome.column("actor/grad_norm"))
    assert outcome.column("rollout_corr/k3_kl")[0] < 1e-3  # both engines have the same weights, in other precisions


def assert_logged(lines: list[list[list[str]]], *, validated: int = 0) -> None:
    """The reward class got all verdicts of a step at once, with those of the validation behind the last step."""
    assert [len(results) for _, results, _ in lines] == [20, 20 + validated]
    assert [len(set(group_uids)) for _, _, group_uids in lines] == [4, 4 + validated]
    for timestamps, results, _ in lines:
        assert all(datetime.fromisoformat(stamp) for stamp in timestamps)
        assert all(result.startswith("score: ") for result in results)


def test_the_script_for_training_runs_on_fsdp2_with_its_reward_class_and_a_reference(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, lines = run_script(TRAINING_FSDP2, materials, tmp_path, monkeypatch)
    assert_trained(outcome)
    assert_logged(lines, validated=2)
    assert outcome.column("critic/score/mean") == pytest.approx([0.0, 0.0], abs=1e-6)  # minus the group's mean
    assert len(outcome.column("actor/kl_loss")) == 2


def test_the_script_for_testing_runs_on_fsdp2_with_its_reward_class(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, lines = run_script(TESTING_FSDP2, materials, tmp_path, monkeypatch)
    assert_trained(outcome)
    assert_logged(lines)


def test_the_script_for_training_runs_on_megatron_with_the_reward_class_and_a_reference(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script names the function of single samples; the class is what the recipe's documentation tells about."""
    outcome, lines = run_script(TRAINING_MEGATRON, materials, tmp_path, monkeypatch, CLASS)
    assert_trained(outcome)
    assert_logged(lines, validated=2)
    assert len(outcome.column("actor/kl_loss")) == 2


def test_the_script_for_testing_runs_on_megatron_with_its_reward_function(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, lines = run_script(TESTING_MEGATRON, materials, tmp_path, monkeypatch)
    assert_trained(outcome)
    assert not lines  # a function has no log
