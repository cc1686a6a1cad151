"""Refuses verl configurations that the reward manager or trainer mode `rewardflow` cannot honour.

Always true: the launcher makes these checks before anything starts, and the manager and the trainer repeat them,
because verl's own main may start them too. Each error names the setting and its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rewardflow.adapters.verl.settings import SECTION, VerlSettings, settings_of
from rewardflow.errors import InvalidInput

# verl's engines by the actor's strategy, and the section of the actor that has an engine's settings.
_ENGINES: Mapping[str, str] = {
    "fsdp": "fsdp_config",
    "fsdp2": "fsdp_config",
    "megatron": "megatron",
    "veomni": "veomni",
    "torchtitan": "torchtitan",
}

# Estimators that need data which no mode of verl's v1 trainer computes, and these data.
_WITHOUT_THEIR_DATA: Mapping[str, str] = {
    "remax": "rewards of greedy rollouts (reward_baselines)",
    "optimal_token_baseline": "sums of squared probabilities (sum_pi_squared)",
    "tir_optimal_token_baseline": "sums of squared probabilities (sum_pi_squared)",
    "gdpo": "numbers of the reward beside its score (algorithm.gdpo_reward_keys)",
}


_CORRECTIONS = ("rollout_is", "rollout_rs", "bypass_mode")  # of verl's `rollout_correction`


def check_manager(reward: Mapping[str, Any]) -> None:
    """Refuses a `reward` section with which verl would go past the reward manager.

    verl asks a reward model that scores by itself, and gives the address of one that writes only to functions that it
    calls by itself.
    """
    source = reward["reward_manager"]["source"]
    if source != "register":
        raise InvalidInput(
            "the reward manager rewardflow is found by its name, so reward.reward_manager.source must be register, "
            f"got {source!r}"
        )
    if reward["reward_model"]["enable"]:
        raise InvalidInput(
            "the reward manager rewardflow cannot reach a reward model that verl serves: serve it yourself and name it "
            "in rewardflow.reward, or keep one of verl's managers; got reward.reward_model.enable=True"
        )


def check_whole_groups(config: Mapping[str, Any]) -> None:
    """Refuses a reward of whole groups where verl does not say which sample of its group a row is."""
    if not config["trainer"].get("use_v1", False) or "async_training" in config:
        raise InvalidInput(
            "a reward that judges whole groups (post_process_scores, score_group) needs verl's v1 trainer, whose rows "
            "have a session_id; got trainer.use_v1="
            f"{config['trainer'].get('use_v1', False)}{', async_training' if 'async_training' in config else ''}"
        )
    check_validation_of_groups(config)


def check_validation_of_groups(config: Mapping[str, Any]) -> None:
    """Refuses groups of two sizes: verl does not say which samples are for validation, so their size is unknown."""
    trainer, rollout = config["trainer"], config["actor_rollout_ref"]["rollout"]
    validates = trainer["val_before_train"] or trainer["test_freq"] > 0
    is_ours = trainer["v1"]["trainer_mode"] == SECTION
    if validates and not is_ours and rollout["val_kwargs"]["n"] != rollout["n"]:
        raise InvalidInput(
            "a reward that judges whole groups needs groups of one size in verl's own modes: "
            "actor_rollout_ref.rollout.val_kwargs.n must equal actor_rollout_ref.rollout.n, got "
            f"{rollout['val_kwargs']['n']} and {rollout['n']}"
        )


def engine_of(actor: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings of the actor's training engine, which say what it offloads."""
    section = _ENGINES.get(actor["strategy"])
    if section is None or section not in actor:
        raise InvalidInput(
            f"trainer mode rewardflow knows the engines {', '.join(sorted(_ENGINES))}, got "
            f"actor_rollout_ref.actor.strategy={actor['strategy']}; trainer.v1.trainer_mode=sync may have it"
        )
    engine: Mapping[str, Any] = actor[section]
    return engine


def offloaded(actor: Mapping[str, Any]) -> dict[str, bool]:
    """Returns what verl keeps in main memory while the actor does nothing, as arguments of the engine's `to`."""
    engine = engine_of(actor)
    moves_itself = actor["strategy"] == "fsdp2" and bool(engine.get("offload_policy"))  # verl ignores the rest then
    model = bool(engine["param_offload"]) and not moves_itself
    return {"model": model, "optimizer": bool(engine["optimizer_offload"]) and not moves_itself, "grad": model}


def check_estimator(name: str) -> None:
    """Refuses an estimator that would fail after the first step was generated and judged, in any mode."""
    if name in _WITHOUT_THEIR_DATA:
        raise InvalidInput(
            f"verl's v1 trainer has no {_WITHOUT_THEIR_DATA[name]} for it, got algorithm.adv_estimator={name}"
        )


def check_mode(config: Mapping[str, Any]) -> None:
    """Refuses what trainer mode `rewardflow` cannot do."""
    settings = settings_of(config)
    engine_of(config["actor_rollout_ref"]["actor"])
    check_estimator(config["algorithm"]["adv_estimator"])
    manager = config["reward"]["reward_manager"]["name"]
    if manager != SECTION:
        raise InvalidInput(
            f"trainer mode rewardflow needs reward.reward_manager.name=rewardflow, got {manager!r}; to keep that "
            "manager, set trainer.v1.trainer_mode=sync"
        )
    actor, data = config["actor_rollout_ref"]["actor"], config["data"]
    batch, mini_batch = data["train_batch_size"], actor["ppo_mini_batch_size"]
    if batch % mini_batch:
        raise InvalidInput(
            "data.train_batch_size must be a multiple of actor_rollout_ref.actor.ppo_mini_batch_size, "
            f"got {batch} and {mini_batch}"
        )
    if actor["ppo_epochs"] > 1 and settings.stream != "batch":
        raise InvalidInput(
            "several epochs over a batch need rewardflow.stream=batch, "
            f"got actor_rollout_ref.actor.ppo_epochs={actor['ppo_epochs']}, rewardflow.stream={settings.stream}"
        )
    _check_critic(config, settings, mini_batch)
    check_correction(config)
    _check_filter(config["algorithm"].get("filter_groups") or {}, settings)


def check_correction(config: Mapping[str, Any]) -> None:
    """Refuses corrections for staleness, in any mode, that would do nothing or fail after a step was paid for."""
    correction = config["algorithm"].get("rollout_correction") or {}
    given = [f"algorithm.rollout_correction.{name}" for name in _CORRECTIONS if correction.get(name)]
    if given and not config["actor_rollout_ref"]["rollout"]["calculate_log_probs"]:
        raise InvalidInput(
            "verl's rollout correction compares with the log-probs of the rollout: it needs "
            f"actor_rollout_ref.rollout.calculate_log_probs=True, got False and {', '.join(given)}"
        )
    check_decoupled(config)


def check_decoupled(config: Mapping[str, Any]) -> None:
    """Refuses the loss `decoupled` without its weights, in any mode: it would fail after a step was paid for."""
    actor, mode = config["actor_rollout_ref"]["actor"], config["trainer"]["v1"]["trainer_mode"]
    if actor["policy_loss"]["loss_mode"] != "decoupled":
        return
    if not config["actor_rollout_ref"]["rollout"]["calculate_log_probs"]:
        raise InvalidInput(
            "the decoupled loss compares with the log-probs of the rollout: it needs "
            "actor_rollout_ref.rollout.calculate_log_probs=True, got False"
        )
    correction = config["algorithm"].get("rollout_correction") or {}
    if correction.get("bypass_mode"):
        raise InvalidInput(
            "the decoupled loss compares the weights that a step starts from with those that generated it, and with "
            "algorithm.rollout_correction.bypass_mode=True verl takes the second for the first: set it to False, got "
            "actor_rollout_ref.actor.policy_loss.loss_mode=decoupled"
        )
    has_weights = correction.get("rollout_is") is not None
    cap = (config.get(SECTION) or {}).get("behaviour_weight_cap")
    if has_weights and cap is not None:
        raise InvalidInput(
            "verl's rollout correction weighs the tokens, so its own rollout_is_threshold bounds the weights: set "
            f"algorithm.rollout_correction.rollout_is=null or leave out rewardflow.behaviour_weight_cap, got "
            f"{correction['rollout_is']} and {cap}"
        )
    if mode != SECTION and not has_weights:
        raise InvalidInput(
            "in verl's own modes the decoupled loss needs algorithm.rollout_correction.rollout_is=token, got none and "
            f"trainer.v1.trainer_mode={mode}"
        )


def _check_filter(filter_groups: Mapping[str, Any], settings: VerlSettings) -> None:
    if not filter_groups.get("enable"):
        return
    if settings.stream != "batch":
        raise InvalidInput(
            "algorithm.filter_groups chooses among all groups of a step before the first update, so it needs "
            f"rewardflow.stream=batch, got rewardflow.stream={settings.stream}"
        )
    if not filter_groups.get("metric"):
        raise InvalidInput("algorithm.filter_groups.metric must name what to compare, such as score or acc, got none")


def _check_critic(config: Mapping[str, Any], settings: VerlSettings, actor_mini_batch: int) -> None:
    """The critic trains on what the actor trains on. verl fills each of the actor's mini-batches up for both."""
    critic = config["critic"]
    is_used = config["algorithm"]["adv_estimator"] == "gae" if critic["enable"] is None else critic["enable"]
    if not is_used:
        return
    if actor_mini_batch % critic["ppo_mini_batch_size"]:
        raise InvalidInput(
            "in trainer mode rewardflow actor_rollout_ref.actor.ppo_mini_batch_size must be a multiple of "
            f"critic.ppo_mini_batch_size, got {actor_mini_batch} and {critic['ppo_mini_batch_size']}"
        )
    if critic["ppo_epochs"] > 1 and settings.stream != "batch":
        raise InvalidInput(
            f"several epochs over a batch need rewardflow.stream=batch, got critic.ppo_epochs={critic['ppo_epochs']}"
        )
