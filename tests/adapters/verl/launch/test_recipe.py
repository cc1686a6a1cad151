"""The recipe's own settings, its defaults, and what is not taken over from it."""

from __future__ import annotations

import pytest

from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.adapters.verl.launch.recipe import is_recipes, recipe_defaults, recipe_differences

DECOUPLED = "actor_rollout_ref.actor.policy_loss.loss_mode=decoupled"


def added(*words: str) -> list[str]:
    return [note.after for note in recipe_defaults(words)]


@pytest.mark.parametrize("word", ["+max_concurrency=8", "reward_model.launch_reward_fn_async=True"])
def test_a_line_with_a_setting_that_only_the_recipe_has_is_the_recipes(word: str) -> None:
    assert is_recipes([VerlOverride.parse(word)])


@pytest.mark.parametrize("word", [DECOUPLED, "reward_model.reward_manager=batch", "trainer.total_epochs=2"])
def test_other_lines_are_not(word: str) -> None:
    assert not is_recipes([VerlOverride.parse(word)])


def test_what_the_line_leaves_open_is_as_in_the_recipe() -> None:
    assert added() == [
        "++rewardflow.max_concurrency=256",
        "++rewardflow.stream=batch",
        "++rewardflow.max_staleness=1",
    ]
    assert "++rewardflow.behaviour_weight_cap=5" in added(DECOUPLED)


def test_what_the_user_set_stays() -> None:
    own = ("++rewardflow.max_concurrency=8", "++rewardflow.stream=mini_batch", "++rewardflow.max_staleness=0")
    assert added(*own, DECOUPLED, "++rewardflow.behaviour_weight_cap=2") == []


def test_where_verl_weighs_the_tokens_its_own_bound_counts() -> None:
    cap, correction = "++rewardflow.behaviour_weight_cap=5", "algorithm.rollout_correction.rollout_is"
    assert cap not in added(DECOUPLED, f"{correction}=token")
    assert cap in added(DECOUPLED, f"{correction}=null")


def test_in_a_mode_of_verls_only_the_number_of_calls_is_the_recipes() -> None:
    assert added("trainer.v1.trainer_mode=sync", DECOUPLED) == ["++rewardflow.max_concurrency=256"]


def test_what_is_not_taken_over_is_said_unless_the_user_asked_for_it() -> None:
    assert [note.before for note in recipe_differences(())] == [
        "mini-batches in the order of verdicts",
        "a reward call that raises ends the agent's thread",
    ]
    in_its_order = recipe_differences(("++rewardflow.order=completion", DECOUPLED))
    assert [note.after for note in in_its_order] == ["a failed verdict", "the rollout engine's"]
