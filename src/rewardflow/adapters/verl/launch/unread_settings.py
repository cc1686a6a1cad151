"""Finds settings that verl accepts and nothing reads, before anything starts.

Always true: only settings that the user changed are named, with the setting that is read instead, if there is one. They
are refused if the run would train something else than they ask for; the others change nothing, and the user is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rewardflow.adapters.verl.config_checks import check_manager
from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.adapters.verl.launch.rewriting import NO_EFFECT, TranslationNote
from rewardflow.adapters.verl.settings import SECTION
from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import did_you_mean

# Settings that verl's v1 trainer does not read, without which it would train something else, and what to do instead.
_UNREAD_BY_TRAINER: Mapping[str, str] = {
    "actor_rollout_ref.actor.grad_clip": "its place is actor_rollout_ref.actor.optim.clip_grad",
    "critic.grad_clip": "its place is critic.optim.clip_grad",
    "actor_rollout_ref.actor.freeze_vision_tower": "nothing reads it",
    "actor_rollout_ref.rollout.over_sample_rate": "nothing reads it",
    "actor_rollout_ref.rollout.multi_turn.num_repeat_rollouts": "nothing reads it",
}

# Settings that verl's v1 trainer does not read either, but which change only speed, memory or what is printed.
_WITHOUT_EFFECT: Mapping[str, str] = {
    "critic.forward_micro_batch_size": "its place is critic.ppo_infer_micro_batch_size_per_gpu",
    "critic.forward_micro_batch_size_per_gpu": "its place is critic.ppo_infer_micro_batch_size_per_gpu",
    "critic.forward_max_token_len_per_gpu": "its place is critic.ppo_infer_max_token_len_per_gpu",
    "actor_rollout_ref.actor.use_prefix_grouper": "only the old trainer has it",
    "actor_rollout_ref.rollout.multi_stage_wake_up": "nothing reads it",
    "data.return_raw_input_ids": "nothing reads it",
    "data.return_full_prompt": "nothing reads it",
    "trainer.balance_batch": "the v1 trainer always balances",
    "trainer.esi_redundant_time": "only the old trainer has it",
}

# Settings that trainer mode `rewardflow` does not read, because it does these things in its own way.
_UNREAD_BY_OUR_MODE: Mapping[str, str] = {
    f"trainer.v1.{SECTION}": f"its settings are in the section {SECTION}",
    "trainer.v1.sampler": "it takes the groups of a step, and rewardflow.max_staleness is the bound",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "it uses its own agent loop",
    "skip.rollout_tq": "it cannot skip generation",
}

# Settings that the reward manager `rewardflow` does not read, because it asks its own agent.
_UNREAD_BY_OUR_MANAGER: Mapping[str, str] = {
    "reward.reward_kwargs": "the reward's own are reward.custom_reward_function.reward_kwargs, and DAPO's penalty for "
    "overlong responses is rewardflow.overlong",
    "reward.reward_manager.module": "it is chosen by its name",
}

_MODES = ("colocate_async", "separate_async")
_ONLY_FOR_OUR_MODE = ("stream", "order", "max_staleness", "behaviour_weight_cap")  # in the section `rewardflow`


def refuse_unread(
    config: Mapping[str, Any], defaults: Mapping[str, Any], words: Sequence[str], *, own_sections: Sequence[str] = ()
) -> None:
    """Checks a run's configuration against verl's `defaults`; `words` are the overrides that changed them.

    `own_sections` are those that the user's own configuration has beside verl's.
    """
    _refuse_unknown_sections([*defaults, *own_sections, SECTION, "hydra"], words)
    _refuse(config, defaults, _UNREAD_BY_TRAINER, "verl's v1 trainer ignores")
    mode = config["trainer"]["v1"]["trainer_mode"]
    if mode == SECTION:
        _refuse(config, defaults, _UNREAD_BY_OUR_MODE, "trainer mode rewardflow ignores")
        _refuse_a_cap_without_its_loss(config)
    else:
        ours = {f"{SECTION}.{name}": f"trainer.v1.trainer_mode is {mode}" for name in _ONLY_FOR_OUR_MODE}
        _refuse(config, {}, ours, "only trainer mode rewardflow reads")
    if config["reward"]["reward_manager"]["name"] == SECTION:
        _refuse(config, defaults, _UNREAD_BY_OUR_MANAGER, "the reward manager rewardflow ignores")
        check_manager(config["reward"])


def without_effect(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[TranslationNote]:
    """Returns the settings that the user changed and that change nothing in this run."""
    mode = config["trainer"]["v1"]["trainer_mode"]
    others = {f"trainer.v1.{name}": f"trainer.v1.trainer_mode is {mode}" for name in _MODES if name != mode}
    if mode != "sync":
        others["data.gen_batch_size"] = "this mode takes prompts one by one"
    if mode == SECTION:
        others["algorithm.filter_groups.max_inflight_gen_batches"] = "this mode generates all that is missing at once"
    return [
        TranslationNote(f"{name}={value}", NO_EFFECT, why)
        for name, value, why in _changed(config, defaults, {**_WITHOUT_EFFECT, **others})
    ]


def _refuse(config: Mapping[str, Any], defaults: Mapping[str, Any], table: Mapping[str, str], who: str) -> None:
    for name, value, why in _changed(config, defaults, table):
        raise InvalidInput(f"{who} {name}: {why}; got {name}={value!r}")


def _changed(
    config: Mapping[str, Any], defaults: Mapping[str, Any], table: Mapping[str, str]
) -> Iterator[tuple[str, Any, str]]:
    """Yields name, value and reason of every setting in the table whose value is not verl's default."""
    for key, why in table.items():
        values, usual = dict(leaves(_at(config, key), key)), dict(leaves(_at(defaults, key), key))
        for name, value in values.items():
            if value is not None and value != usual.get(name):
                yield name, value, why


def _refuse_unknown_sections(known: Sequence[str], words: Sequence[str]) -> None:
    """Refuses new sections that no other setting refers to. In known sections anything may read a new setting."""
    overrides = [VerlOverride.parse(word) for word in words]
    for override in overrides:
        section = re.split(r"[.@/]", override.key, maxsplit=1)[0]
        is_referred_to = any(f"${{{section}" in (other.value or "") for other in overrides)
        if override.mark in ("+", "++") and section not in known and not is_referred_to:
            hint = did_you_mean(section, known, otherwise="")
            raise InvalidInput(
                f"verl takes {override.key} and nothing reads it, got {override}{'; ' if hint else ''}{hint}"
            )


def _refuse_a_cap_without_its_loss(config: Mapping[str, Any]) -> None:
    cap = _at(config, f"{SECTION}.behaviour_weight_cap")
    loss = _at(config, "actor_rollout_ref.actor.policy_loss.loss_mode")
    if cap is not None and loss != "decoupled":
        raise InvalidInput(
            f"{SECTION}.behaviour_weight_cap needs actor_rollout_ref.actor.policy_loss.loss_mode=decoupled, got {cap} "
            f"and loss_mode={loss}"
        )


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value of a configuration with its dotted key."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, tree


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
