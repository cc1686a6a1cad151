"""Kinds of runs that verl's examples have: each trains two steps in mode `rewardflow`."""

from __future__ import annotations

from pathlib import Path

import pytest
import verl_job
from verl_job import Materials, ended_well, judged_by

KINDS = {
    "one rollout per prompt": (
        [
            "algorithm.adv_estimator=reinforce_plus_plus",
            "actor_rollout_ref.rollout.n=1",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",  # verl divides mini-batches evenly
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
        ],
        4,
    ),
    "RLOO": (["algorithm.adv_estimator=rloo", "rewardflow.order=completion"], 16),
    "GSPO": (["actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "rewardflow.max_staleness=1"], 16),
    "sequences weigh the same": (["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"], 16),
    "rollout correction": (
        [
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            "algorithm.rollout_correction.rollout_is=token",
            "algorithm.rollout_correction.rollout_is_threshold=2.0",
            "rewardflow.max_staleness=1",
        ],
        16,
    ),
    "LoRA": (
        [
            "actor_rollout_ref.model.lora_rank=8",
            "actor_rollout_ref.model.lora_alpha=16",
            "actor_rollout_ref.model.lora.merge=True",  # the rollout on CPU takes whole weights
        ],
        16,
    ),
    "several turns": (
        [
            "actor_rollout_ref.rollout.multi_turn.enable=True",
            "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
        ],
        16,
    ),
    "two epochs": (["actor_rollout_ref.actor.ppo_epochs=2", "rewardflow.stream=batch"], 16),
}


@pytest.mark.parametrize(("words", "scored"), KINDS.values(), ids=KINDS)
def test_a_kind_trains_two_steps(materials: Materials, tmp_path: Path, words: list[str], scored: int) -> None:
    settings = [*verl_job.small(materials), *judged_by("delayed", median_s=0.1), *words]
    outcome = ended_well(tmp_path, settings)
    assert outcome.column("rewardflow/verdicts/scored") == [scored, scored]
    assert outcome.column("rewardflow/groups/trained") == [4, 4]
    assert all(norm > 0 for norm in outcome.column("actor/grad_norm"))


def test_a_critic_and_a_reference_on_fsdp2_have_their_part_in_every_update_and_the_critic_may_start_alone(
    materials: Materials, tmp_path: Path
) -> None:
    words = [
        "trainer.critic_warmup=2",  # the first step in which the actor trains
        "actor_rollout_ref.actor.optim.lr_warmup_steps=4",
        "algorithm.adv_estimator=gae",
        "critic.strategy=fsdp2",
        f"critic.model.path={materials.model}",
        "critic.ppo_mini_batch_size=2",
        "critic.ppo_micro_batch_size_per_gpu=8",
        "critic.use_dynamic_bsz=False",
        "critic.model.use_remove_padding=False",
        "critic.model.enable_gradient_checkpointing=False",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=False",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
        "rewardflow.max_staleness=1",
    ]
    outcome = ended_well(tmp_path, [*verl_job.small(materials, steps=3), *judged_by("delayed", median_s=0.1), *words])
    assert outcome.column("rewardflow/verdicts/scored") == [16, 16, 16]
    assert outcome.column("rewardflow/staleness/max") == [0, 1, 1]
    assert all(norm > 0 for norm in (*outcome.column("actor/grad_norm"), *outcome.column("critic/grad_norm")))
    assert (len(outcome.column("critic/vf_loss")), len(outcome.column("actor/kl_loss"))) == (3, 2)
    assert outcome.column("actor/lr") == pytest.approx([2.5e-4, 5e-4])  # it moves when the actor trains, as in verl


def test_a_student_learns_from_a_teachers_log_probs_and_from_its_reward(materials: Materials, tmp_path: Path) -> None:
    """The teacher is the policy's own first weights, so that the first update has nothing to learn from it."""
    teacher = "distillation.teacher_models.teacher_model"
    words = [
        "distillation.enabled=True",
        "distillation.n_gpus_per_node=1",
        "distillation.nnodes=1",
        "distillation.distillation_loss.loss_mode=k3",
        f"{teacher}.model_path={materials.model}",
        f"{teacher}.inference.tensor_model_parallel_size=1",
    ]
    outcome = ended_well(
        tmp_path, [*verl_job.small(materials, mini_batches=1), *judged_by("delayed", median_s=0.1), *words]
    )
    assert outcome.column("rewardflow/groups/trained") == [4, 4]
    (name,) = [name for name in outcome.metrics[0] if name.endswith("distillation/abs_loss")]
    first, second = outcome.column(name)
    assert first < 1e-4 < second


def test_dapo_replaces_groups_that_agree_and_punishes_long_responses(materials: Materials, tmp_path: Path) -> None:
    words = [
        "reward_model.reward_manager=dapo",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.len=8",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5",
        "+reward_model.reward_kwargs.max_resp_len=16",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
    ]
    outcome = ended_well(tmp_path, [*verl_job.small(materials), *judged_by("rounded"), *words])
    assert outcome.column("rewardflow/groups/trained") == [4, 4]
    assert sum(outcome.column("rewardflow/groups/dropped/equal_scores")) > 0
    assert min(outcome.column("critic/score/min")) == pytest.approx(-0.5)  # the longest response, without a digit
    assert all(mean < 0 for mean in outcome.column("rewardflow/reward/overlong_reward"))
    assert all(mean > 0 for mean in outcome.column("rewardflow/reward/num_letters"))
    assert outcome.output.count("'note' is no number") == 1
