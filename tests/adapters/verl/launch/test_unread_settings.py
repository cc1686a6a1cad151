"""Settings that verl accepts and nothing reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rewardflow.adapters.verl.launch.unread_settings import refuse_unread, without_effect
from rewardflow.errors import InvalidInput

DEFAULTS: dict[str, Any] = {
    "actor_rollout_ref": {"actor": {"grad_clip": 1.0}},
    "reward": {
        "reward_manager": {"name": "naive", "source": "register"},
        "reward_model": {"enable": False},
        "custom_reward_function": {"path": None},
    },
    "trainer": {
        "balance_batch": True,
        "v1": {
            "trainer_mode": "sync",
            "colocate_async": {"num_warmup_batches": 1},
            "sampler": {"max_off_policy_threshold": 8},
        },
    },
}


def config(mode: str = "sync", manager: str = "rewardflow") -> dict[str, Any]:
    made = copy.deepcopy(DEFAULTS)
    made["trainer"]["v1"]["trainer_mode"] = mode
    made["reward"]["reward_manager"]["name"] = manager
    return made


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "rewardflow"])
def test_defaults_are_never_refused(mode: str) -> None:
    refuse_unread(config(mode), DEFAULTS, ["+trainer.own=1", "rewardflow.rpm=60", "~trainer.v1"])


def test_only_a_changed_value_is_refused_with_its_place() -> None:
    changed = config()
    changed["actor_rollout_ref"]["actor"]["grad_clip"] = 0.5
    with pytest.raises(InvalidInput, match=r"its place is .*optim\.clip_grad; got .*grad_clip=0\.5"):
        refuse_unread(changed, DEFAULTS, [])


def test_settings_of_a_mode_that_is_not_chosen_have_no_effect_and_are_told() -> None:
    changed = config("rewardflow")
    changed["trainer"]["v1"]["colocate_async"]["num_warmup_batches"] = 2
    refuse_unread(changed, DEFAULTS, [])
    (note,) = without_effect(changed, DEFAULTS)
    assert str(note) == (
        "trainer.v1.colocate_async.num_warmup_batches=2 -> no effect (trainer.v1.trainer_mode is rewardflow)"
    )
    changed["trainer"]["v1"]["trainer_mode"] = "colocate_async"
    assert without_effect(changed, DEFAULTS) == []


def test_a_setting_that_changes_no_training_is_told_and_goes_on() -> None:
    changed = config()
    changed["trainer"]["balance_batch"] = False
    refuse_unread(changed, DEFAULTS, [])
    assert [note.before for note in without_effect(changed, DEFAULTS)] == ["trainer.balance_batch=False"]


def test_verls_sampler_is_for_verls_modes() -> None:
    changed = config("colocate_async")
    changed["trainer"]["v1"]["sampler"]["max_off_policy_threshold"] = 2
    refuse_unread(changed, DEFAULTS, [])
    changed["trainer"]["v1"]["trainer_mode"] = "rewardflow"
    with pytest.raises(InvalidInput, match=r"rewardflow\.max_staleness is the bound"):
        refuse_unread(changed, DEFAULTS, [])


@pytest.mark.parametrize("word", ["+max_concurency=1", "++mini_batch_pipelin=True"])
def test_a_section_beside_verls_own_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match="nothing reads it"):
        refuse_unread(config(), DEFAULTS, [word])


def test_a_reward_model_that_verl_serves_is_refused() -> None:
    changed = config()
    changed["reward"]["reward_model"]["enable"] = True
    for path in (None, "judge.py"):
        changed["reward"]["custom_reward_function"]["path"] = path
        with pytest.raises(InvalidInput, match="cannot reach a reward model that verl serves"):
            refuse_unread(changed, DEFAULTS, [])
    changed["reward"]["reward_manager"]["name"] = "naive"
    refuse_unread(changed, DEFAULTS, [])


def test_settings_that_only_our_mode_reads_are_refused_in_verls_modes() -> None:
    changed = config("colocate_async") | {"rewardflow": {"max_staleness": 1, "rpm": 60}}
    with pytest.raises(InvalidInput, match=r"only trainer mode rewardflow reads rewardflow\.max_staleness"):
        refuse_unread(changed, DEFAULTS, [])
    changed["rewardflow"] = {"rpm": 60, "min_group": 3}
    refuse_unread(changed, DEFAULTS, [])


def test_a_cap_on_weights_needs_the_loss_that_has_them() -> None:
    changed = config("rewardflow") | {"rewardflow": {"behaviour_weight_cap": 5.0}}
    with pytest.raises(InvalidInput, match="loss_mode=decoupled, got 5"):
        refuse_unread(changed, DEFAULTS, [])
    changed["actor_rollout_ref"]["actor"]["policy_loss"] = {"loss_mode": "decoupled"}
    refuse_unread(changed, DEFAULTS, [])
