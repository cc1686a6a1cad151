"""Real runs of verl's Megatron engine, on two CPU ranks: the same trainer mode as with FSDP2, another engine."""

from __future__ import annotations

from pathlib import Path

import torch
import verl_job
from transformers import AutoModelForCausalLM
from verl_job import Materials, ended_well, judged_by
from verl_recipe_lines import ALL_SETTINGS, CONFIG_PATH, DOCUMENTED_MEGATRON, MEGATRON_CONFIG_NAME

MEGATRON = "actor_rollout_ref.actor.megatron"
TWO_RANKS = "trainer.n_gpus_per_node=2"
ON_CPU = ("verl_cpu_megatron",)


def test_the_recipes_line_for_megatron_trains_two_steps_with_tensors_cut_in_two(
    materials: Materials, tmp_path: Path
) -> None:
    outcome = ended_well(
        tmp_path,
        [
            f"--config-path={CONFIG_PATH}",
            f"--config-name={MEGATRON_CONFIG_NAME}",
            *verl_job.small(materials, engine=verl_job.ON_MEGATRON),
            *DOCUMENTED_MEGATRON,
            *ALL_SETTINGS,
            *verl_job.RECIPES_JUDGE,
            TWO_RANKS,
            f"{MEGATRON}.tensor_model_parallel_size=2",
        ],
        modules=ON_CPU,
    )
    assert outcome.column("rewardflow/verdicts/scored") == [16, 16]
    assert outcome.column("rewardflow/staleness/max") == [0, 1]  # the second was generated before the first update
    assert all(norm > 0 for norm in outcome.column("actor/grad_norm"))
    assert all(0 < weight < 2 for weight in outcome.column("rewardflow/behaviour_weight/mean"))


def test_stages_of_a_pipeline_hand_on_what_they_trained_and_go_on_from_what_they_saved(
    materials: Materials, tmp_path: Path
) -> None:
    """The rollout is transformers', so its log-probs are those of Megatron's only if every weight got there."""
    settings = [
        *verl_job.small(materials, engine=verl_job.ON_MEGATRON),
        TWO_RANKS,
        f"{MEGATRON}.pipeline_model_parallel_size=2",
        *judged_by("delayed", median_s=0.3),
        "trainer.save_freq=2",
    ]
    first = ended_well(tmp_path / "first", settings, modules=ON_CPU)
    saved = tmp_path / "first" / "checkpoints" / "global_step_2"
    second = ended_well(
        tmp_path / "second",
        [
            *settings,
            "trainer.total_training_steps=3",
            "trainer.resume_mode=resume_path",
            f"trainer.resume_from_path={saved}",
            # Megatron's distributed optimizer loads its state only where Apex or TransformerEngine is installed.
            "actor_rollout_ref.actor.checkpoint.load_contents=[model,extra]",
        ],
        modules=ON_CPU,
    )
    assert [step["step"] for step in (*first.metrics, *second.metrics)] == [1, 2, 3]
    for outcome in (first, second):
        assert all(abs(found) < 1e-5 for found in outcome.column("rollout_corr/k3_kl"))
    trained = AutoModelForCausalLM.from_pretrained(saved / "actor" / "model" / "huggingface", dtype=torch.float32)
    started = AutoModelForCausalLM.from_pretrained(materials.model, dtype=torch.float32).state_dict()
    moved = {name: (weight - started[name]).abs().max().item() for name, weight in trained.state_dict().items()}
    assert all(0 < far < 0.02 for far in moved.values()), moved


def test_a_critic_and_a_reference_have_their_part_in_every_update(materials: Materials, tmp_path: Path) -> None:
    outcome = ended_well(
        tmp_path,
        [
            *verl_job.small(materials, engine=verl_job.ON_MEGATRON),
            "algorithm.adv_estimator=gae",
            f"critic.model.path={materials.model}",
            "critic.ppo_mini_batch_size=2",
            "critic.ppo_micro_batch_size_per_gpu=8",
            "critic.use_dynamic_bsz=False",
            *verl_job.megatron_layers("critic"),
            "actor_rollout_ref.actor.use_kl_loss=True",
            "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=False",
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
            *judged_by("delayed", median_s=0.3),
            "rewardflow.max_staleness=1",
        ],
        modules=ON_CPU,
    )
    assert outcome.column("rewardflow/verdicts/scored") == [16, 16]
    assert outcome.column("rewardflow/staleness/max") == [0, 1]
    assert all(norm > 0 for norm in (*outcome.column("actor/grad_norm"), *outcome.column("critic/grad_norm")))
    assert len(outcome.column("critic/vf_loss")) == 2
    first, second = outcome.column("actor/kl_loss")  # of the first step's second update, and of both of the next's
    assert 0 < first < second
    assert not [name for name in outcome.metrics[0] if "updated_at" in name]  # when an update ended is our own affair
