"""Words of older verl releases."""

from __future__ import annotations

import pytest

from rewardflow.adapters.verl.launch.old_words import rewrite_old
from rewardflow.adapters.verl.launch.overrides import VerlOverride


@pytest.mark.parametrize(
    ("old", "place"),
    [
        ("reward_model.num_workers=4", "reward.num_workers=4"),
        ("reward_model.enable=True", "reward.reward_model.enable=True"),
        ("reward_model.model.path=m", "reward.reward_model.model_path=m"),
        ("+reward_model.reward_kwargs.max_resp_len=8", "+reward.reward_kwargs.max_resp_len=8"),
        ("reward_model.reward_manager=dapo", "reward.reward_manager.name=dapo"),
        ("sandbox_fusion.url=http://127.0.0.1", "reward.sandbox_fusion.url=http://127.0.0.1"),
        ("custom_reward_function.name=score", "reward.custom_reward_function.name=score"),
        ("custom_reward_function.reward_kwargs.a=1", "+reward.custom_reward_function.reward_kwargs.a=1"),
        ("actor_rollout_ref.actor.grad_clip=0.5", "actor_rollout_ref.actor.optim.clip_grad=0.5"),
    ],
)
def test_a_setting_that_verl_ignores_goes_to_the_place_that_is_read(old: str, place: str) -> None:
    rewritten = rewrite_old(VerlOverride.parse(old))
    assert rewritten is not None
    assert rewritten.words == (place,)
    assert rewritten.why


@pytest.mark.parametrize("part", ["actor", "ref"])
def test_offloading_of_gradients_is_part_of_offloading_parameters(part: str) -> None:
    rewritten = rewrite_old(VerlOverride.parse(f"actor_rollout_ref.{part}.megatron.grad_offload=True"))
    assert rewritten is not None
    assert rewritten.words == ()
    assert "param_offload" in rewritten.why


@pytest.mark.parametrize("word", ["reward.num_workers=4", "trainer.total_epochs=1", "rewards.x=1"])
def test_other_words_stay(word: str) -> None:
    assert rewrite_old(VerlOverride.parse(word)) is None
