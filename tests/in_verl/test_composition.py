"""Command lines against the installed verl's own configuration. Nothing is started."""

from __future__ import annotations

import pytest
from verl_recipe_lines import ALL_SETTINGS, CONFIG_PATH, DOCUMENTED_FSDP2, DOCUMENTED_MEGATRON, MEGATRON_CONFIG_NAME

from rewardflow.adapters.verl.composition import check, completed, differences
from rewardflow.adapters.verl.translation import translate
from rewardflow.errors import InvalidInput


def test_the_recipes_line_for_megatron_composes_with_every_setting_in_its_place() -> None:
    lines = (*DOCUMENTED_MEGATRON, *ALL_SETTINGS, "actor_rollout_ref.actor.megatron.param_offload=True")
    command, config = completed(translate(lines, config_path=CONFIG_PATH, config_name=MEGATRON_CONFIG_NAME))
    settings = check(config)
    actor = config["actor_rollout_ref"]["actor"]
    assert (actor["strategy"], config["critic"]["strategy"]) == ("megatron", "megatron")
    assert actor["megatron"]["param_offload"] is True
    assert actor["policy_loss"]["loss_mode"] == "decoupled"
    assert config["reward"]["reward_manager"]["name"] == config["trainer"]["v1"]["trainer_mode"] == "rewardflow"
    assert settings.reward == "/home/user/rewards/gsm8k.py:compute_score"
    assert (settings.stream, settings.max_staleness, settings.behaviour_weight_cap) == ("mini_batch", 1, 5.0)
    assert settings.agent_options["max_concurrency"] == 256
    assert "actor_rollout_ref.rollout.name=vllm" in command.overrides


def test_differences_from_verls_defaults_are_those_that_were_made() -> None:
    command, config = completed(translate([*DOCUMENTED_FSDP2, "actor_rollout_ref.rollout.name=vllm"]))
    found = {key: value for key, _, value in differences(command, config)}
    assert found["reward.custom_reward_function.name"] == "Gsm8kAgent"
    assert found["rewardflow.max_staleness"] == 1
    assert "trainer.total_epochs" not in found


def test_a_key_that_verl_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"actor_rollout_ref\.actor\.no_such_key"):
        completed(translate(["actor_rollout_ref.actor.no_such_key=1"]))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["algorithm.filter_groups.enable=True"], "filter_groups.enable must be False"),
        (["actor_rollout_ref.actor.ppo_epochs=2"], "need rewardflow.stream=batch"),
        (["data.train_batch_size=100"], "must be a multiple"),
        (["reward.reward_manager.name=naive"], "needs reward.reward_manager.name=rewardflow"),
        (
            ["trainer.v1.trainer_mode=sync", "reward.reward_manager.name=naive", "data.reward_fn_key=topic"],
            "ignore data.reward_fn_key",
        ),
        (["+reward_model.reward_kwargs=1"], "its place is reward.reward_kwargs"),
    ],
)
def test_what_nobody_would_honour_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        check(completed(translate(words))[1])
