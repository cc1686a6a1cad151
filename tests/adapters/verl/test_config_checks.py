"""Configurations that the reward manager or trainer mode `rewardflow` cannot honour."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rewardflow.adapters.verl.config_checks import (
    check_correction,
    check_decoupled,
    check_manager,
    check_mode,
    check_validation_of_groups,
    check_whole_groups,
    engine_of,
    offloaded,
)
from rewardflow.errors import InvalidInput

CONFIG: dict[str, Any] = {
    "actor_rollout_ref": {
        "actor": {
            "ppo_mini_batch_size": 2,
            "ppo_epochs": 1,
            "policy_loss": {"loss_mode": "vanilla"},
            "strategy": "fsdp2",
            "fsdp_config": {"param_offload": True},
        },
        "rollout": {"n": 4, "val_kwargs": {"n": 1}, "calculate_log_probs": False},
    },
    "algorithm": {"adv_estimator": "grpo"},
    "critic": {"enable": None, "ppo_mini_batch_size": 2, "ppo_epochs": 1},
    "data": {"train_batch_size": 8},
    "reward": {"reward_manager": {"name": "rewardflow", "source": "register"}, "reward_model": {"enable": False}},
    "trainer": {
        "project_name": "p",
        "experiment_name": "e",
        "default_local_dir": "checkpoints",
        "val_before_train": True,
        "test_freq": -1,
        "v1": {"trainer_mode": "rewardflow"},
    },
}


def config(**changes: Any) -> dict[str, Any]:
    """Ours, with values at dotted keys; `__` is a dot."""
    made = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        *path, last = key.split("__")
        part = made
        for name in path:
            part = part.setdefault(name, {})
        part[last] = value
    return made


def test_a_configuration_that_can_be_honoured_is_accepted() -> None:
    check_mode(config())
    check_manager(config()["reward"])
    check_validation_of_groups(config())


@pytest.mark.parametrize("setting", ["rollout_is", "rollout_rs", "bypass_mode"])
def test_a_correction_has_the_log_probs_that_it_compares_with(setting: str) -> None:
    changes: dict[str, Any] = {"algorithm__rollout_correction": {setting: "token"}}
    with pytest.raises(InvalidInput, match=rf"calculate_log_probs=True, got False and .*{setting}"):
        check_correction(config(**changes))
    check_correction(config(**changes, actor_rollout_ref__rollout__calculate_log_probs=True))


def decoupled(mode: str, *, rollout_is: str | None, bypass: bool = False, cap: float | None = None) -> dict[str, Any]:
    return config(
        actor_rollout_ref__actor__policy_loss__loss_mode="decoupled",
        actor_rollout_ref__rollout__calculate_log_probs=True,
        algorithm__rollout_correction={"rollout_is": rollout_is, "bypass_mode": bypass},
        trainer__v1__trainer_mode=mode,
        rewardflow={"behaviour_weight_cap": cap},
    )


def test_the_decoupled_loss_has_its_weights_in_every_mode() -> None:
    check_decoupled(decoupled("rewardflow", rollout_is=None, cap=5.0))
    check_decoupled(decoupled("rewardflow", rollout_is="token"))
    check_decoupled(decoupled("sync", rollout_is="token"))
    with pytest.raises(
        InvalidInput, match=r"needs algorithm.rollout_correction.rollout_is=token, got none and .*=sync"
    ):
        check_decoupled(decoupled("sync", rollout_is=None))
    with pytest.raises(InvalidInput, match="bypass_mode=True verl takes the second for the first"):
        check_decoupled(decoupled("rewardflow", rollout_is=None, bypass=True))
    with pytest.raises(InvalidInput, match=r"rollout_is_threshold bounds the weights: .*, got token and 5.0"):
        check_decoupled(decoupled("rewardflow", rollout_is="token", cap=5.0))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data__train_batch_size": 7}, "got 7 and 2"),
        ({"reward__reward_manager__name": "naive"}, "needs reward.reward_manager.name=rewardflow, got 'naive'"),
        ({"actor_rollout_ref__actor__ppo_epochs": 2}, "ppo_epochs=2, rewardflow.stream=mini_batch"),
        ({"actor_rollout_ref__actor__policy_loss__loss_mode": "decoupled"}, "calculate_log_probs=True, got False"),
        ({"algorithm__filter_groups": {"enable": True}}, "needs rewardflow.stream=batch, got rewardflow.stream=mini"),
        (
            {"algorithm__filter_groups": {"enable": True}, "rewardflow": {"stream": "batch"}},
            "filter_groups.metric must name",
        ),
        ({"algorithm__adv_estimator": "remax"}, "no rewards of greedy rollouts"),
        ({"algorithm__adv_estimator": "gdpo"}, "no numbers of the reward beside its score"),
        ({"actor_rollout_ref__actor__strategy": "automodel"}, "got actor_rollout_ref.actor.strategy=automodel"),
        ({"actor_rollout_ref__actor__strategy": "veomni"}, "got actor_rollout_ref.actor.strategy=veomni"),
        ({"algorithm__adv_estimator": "gae", "critic__ppo_mini_batch_size": 3}, "got 2 and 3"),
        ({"critic__enable": True, "critic__ppo_epochs": 2}, "got critic.ppo_epochs=2"),
        # verl fills each of the actor's mini-batches up to whole ones of the critic, so the actor would train on twice
        # as many, half of them padding
        ({"critic__enable": True, "critic__ppo_mini_batch_size": 4, "rewardflow": {"stream": "batch"}}, "got 2 and 4"),
    ],
)
def test_what_the_mode_cannot_do_is_refused_with_its_value(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        check_mode(config(**changes))


@pytest.mark.parametrize(
    ("strategy", "engine", "moved"),
    [
        ("fsdp2", {"param_offload": True, "optimizer_offload": True}, {"model", "optimizer", "grad"}),
        ("fsdp2", {"param_offload": False, "optimizer_offload": True}, {"optimizer"}),
        ("fsdp2", {"param_offload": True, "optimizer_offload": True, "offload_policy": True}, set()),
        ("fsdp", {"param_offload": True, "optimizer_offload": False, "offload_policy": True}, {"model", "grad"}),
        ("megatron", {"param_offload": False, "optimizer_offload": False}, set()),
    ],
)
def test_what_verl_offloads_is_moved_unless_fsdp2_moves_it_itself(
    strategy: str, engine: dict[str, bool], moved: set[str]
) -> None:
    section = "megatron" if strategy == "megatron" else "fsdp_config"
    found = offloaded({"strategy": strategy, section: engine})
    assert {what for what, is_moved in found.items() if is_moved} == moved


def test_several_epochs_are_accepted_over_a_whole_batch() -> None:
    check_mode(config(actor_rollout_ref__actor__ppo_epochs=2, rewardflow={"stream": "batch"}))


@pytest.mark.parametrize("strategy", ["megatron", "veomni", "torchtitan"])
def test_what_is_offloaded_is_read_from_the_chosen_engine(strategy: str) -> None:
    actor = {"strategy": strategy, strategy: {"param_offload": False}, "fsdp_config": {"param_offload": True}}
    assert engine_of(actor) == {"param_offload": False}


@pytest.mark.parametrize(
    "changes", [{"trainer__use_v1": False}, {"trainer__use_v1": True, "async_training": {"partial_rollout": True}}]
)
def test_a_reward_of_whole_groups_is_refused_where_rows_do_not_say_which_sample_they_are(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(InvalidInput, match="needs verl's v1 trainer, whose rows have a session_id"):
        check_whole_groups(config(**changes))
    check_whole_groups(config(trainer__use_v1=True))


def test_a_reward_manager_that_is_not_found_by_its_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be register, got 'importlib'"):
        check_manager(config(reward__reward_manager__source="importlib")["reward"])


def test_in_verls_own_modes_groups_for_validation_must_have_the_size_of_the_others() -> None:
    with pytest.raises(InvalidInput, match="got 1 and 4"):
        check_validation_of_groups(config(trainer__v1__trainer_mode="sync"))
    check_validation_of_groups(config(trainer__v1__trainer_mode="sync", trainer__val_before_train=False))
    check_validation_of_groups(config(trainer__v1__trainer_mode="sync", actor_rollout_ref__rollout__val_kwargs__n=4))
