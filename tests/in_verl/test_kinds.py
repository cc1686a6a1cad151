"""Kinds of runs that verl's examples have: each trains two steps in mode `rewardflow`."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
import verl_job
from verl_job import Materials, ended_well, judged_by
from verl_recipe_lines import CONFIG_PATH, MEGATRON_CONFIG_NAME, SCRIPT_FSDP2, SCRIPT_MEGATRON

KINDS = {
    "one rollout per prompt": (["algorithm.adv_estimator=reinforce_plus_plus", "actor_rollout_ref.rollout.n=1"], 4),
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
    "two epochs": (["actor_rollout_ref.actor.ppo_epochs=2", "rewardflow.stream=batch"], 16),
}


@pytest.mark.parametrize(("words", "scored"), KINDS.values(), ids=KINDS)
def test_a_kind_trains_two_steps(materials: Materials, tmp_path: Path, words: list[str], scored: int) -> None:
    settings = [*verl_job.small(materials), *judged_by("delayed", median_s=0.1), *words]
    outcome = ended_well(tmp_path, settings)
    assert outcome.column("rewardflow/verdicts/scored") == [scored, scored]
    assert outcome.column("rewardflow/groups/trained") == [4, 4]
    assert all(norm > 0 for norm in outcome.column("actor/grad_norm"))


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


def test_the_recipes_whole_script_for_fsdp2_trains_with_its_reward_class(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECIPE_LOG", str(tmp_path / "log.jsonl"))
    own = [f"custom_reward_function.path={verl_job.REWARDS}", "custom_reward_function.name=RecipeAgent"]
    words = [f"--config-path={CONFIG_PATH}", *SCRIPT_FSDP2, *verl_job.small(materials), *own]
    outcome = ended_well(tmp_path / "run", words)
    assert outcome.column("rewardflow/verdicts/scored") == [16, 16]
    assert outcome.column("rewardflow/staleness/max") == [0, 1]
    assert outcome.column("critic/score/mean") == pytest.approx([0.0, 0.0], abs=1e-6)  # minus the group's mean
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert sum(len(results) for _, results, _ in lines) == 32
    for timestamps, results, _ in lines:
        assert all(datetime.fromisoformat(stamp) for stamp in timestamps)
        assert all(result.startswith("score: ") for result in results)


def test_the_recipes_whole_script_for_megatron_trains(materials: Materials, tmp_path: Path) -> None:
    outcome = ended_well(
        tmp_path,
        [
            f"--config-path={CONFIG_PATH}",
            f"--config-name={MEGATRON_CONFIG_NAME}",
            *SCRIPT_MEGATRON,
            *verl_job.small(materials, engine=verl_job.ON_MEGATRON),
            f"custom_reward_function.path={verl_job.REWARDS}",
            "trainer.n_gpus_per_node=2",
            "actor_rollout_ref.actor.megatron.param_offload=False",  # memory of a CPU is not offloaded
            "actor_rollout_ref.actor.megatron.optimizer_offload=False",
        ],
        modules=("verl_cpu_megatron",),
    )
    assert outcome.column("rewardflow/verdicts/scored") == [16, 16]
    assert outcome.column("rewardflow/staleness/max") == [0, 1]
    assert all(norm > 0 for norm in outcome.column("actor/grad_norm"))
