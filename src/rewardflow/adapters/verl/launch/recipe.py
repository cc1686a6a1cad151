"""Knows the recipe `async_reward_agent` of verl: its settings, its defaults, and where a run here differs from it.

Always true: the recipe's defaults are added only to a command line that has one of the recipe's own settings, and never
replace what the user set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.adapters.verl.launch.rewriting import Rewritten, TranslationNote
from rewardflow.adapters.verl.settings import SECTION

_LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"

_CORRECTION = "algorithm.rollout_correction.rollout_is"

Rewrite = Callable[[VerlOverride], Rewritten | None]


def renamed_to(key: str, why: str = "", *, mark: str = "") -> Rewrite:
    return lambda override: Rewritten((str(VerlOverride(key, override.value, mark)),), why)


def _launched_async(override: VerlOverride) -> Rewritten:
    staleness = 1 if override.is_true() else 0
    return Rewritten((f"++{SECTION}.max_staleness={staleness}",), "the recipe generates a step while one is judged")


def _pipeline(override: VerlOverride) -> Rewritten:
    stream = "mini_batch" if override.is_true() else "batch"
    return Rewritten((f"++{SECTION}.stream={stream}",))


def _loss_mode(override: VerlOverride) -> Rewritten | None:
    if override.text != "decoupled":
        return None
    words = (str(override), "actor_rollout_ref.rollout.calculate_log_probs=True")
    return Rewritten(words, "the loss compares with the log-probs of the rollout")


_WEIGHT_CAP = renamed_to(f"{SECTION}.behaviour_weight_cap", mark="++")

# One of these settings makes a command line the recipe's. verl knew the first, too, in releases before the plug-in's.
_OWN: Mapping[str, Rewrite] = {
    "reward_model.launch_reward_fn_async": _launched_async,
    "max_concurrency": renamed_to(f"{SECTION}.max_concurrency", mark="++"),
    "mini_batch_pipeline": _pipeline,
    "update_pipeline": _pipeline,
    "actor_rollout_ref.actor.policy_loss.behav_imp_weight_cap": _WEIGHT_CAP,
    "actor_rollout_ref.actor.behav_imp_weight_cap": _WEIGHT_CAP,
}
RECIPE_WORDS: Mapping[str, Rewrite] = {**_OWN, _LOSS_MODE: _loss_mode}

# What the recipe does when nothing is set, and rewardflow by itself does otherwise.
_CONCURRENCY = f"{SECTION}.max_concurrency"
_DEFAULTS: Mapping[str, tuple[str, str]] = {
    _CONCURRENCY: ("256", "the recipe's number of calls at once"),
    f"{SECTION}.stream": ("batch", "without mini_batch_pipeline the recipe trains whole batches"),
    f"{SECTION}.max_staleness": ("1", "the recipe always generates a step ahead"),
}
_CAP = f"{SECTION}.behaviour_weight_cap"

# What the recipe does and a run here does not.
_DIFFERENCES = (
    TranslationNote(
        "mini-batches in the order of verdicts",
        "in the order of prompts",
        f"which prompts share an update does not depend on delays; {SECTION}.order=completion is the recipe's order",
    ),
    TranslationNote(
        "a reward call that raises ends the agent's thread",
        "a failed verdict",
        f"it is retried, then left out; {SECTION}.max_attempts, {SECTION}.min_group",
    ),
    TranslationNote(
        "the behaviour policy's log-probs are computed again",
        "the rollout engine's",
        "actor_rollout_ref.rollout.calculate_log_probs=True records them",
    ),
)


def is_recipes(given: Iterable[VerlOverride]) -> bool:
    """Whether a command line was written for the recipe."""
    return any(override.key in _OWN for override in given)


def recipe_defaults(words: Sequence[str]) -> list[TranslationNote]:
    """Returns the recipe's defaults for what these translated words leave open; `after` is the word to add."""
    overrides = {override.key: override for override in map(VerlOverride.parse, words)}
    mode = overrides.get("trainer.v1.trainer_mode")
    is_verls_mode = mode is not None and mode.text != SECTION
    defaults = {key: default for key, default in _DEFAULTS.items() if not is_verls_mode or key == _CONCURRENCY}
    corrects = overrides.get(_CORRECTION)  # verl's own weights, with their own bound
    is_corrected = corrects is not None and corrects.text != "null"
    loss = overrides.get(_LOSS_MODE)
    if not is_verls_mode and not is_corrected and loss is not None and loss.text == "decoupled":
        defaults[_CAP] = ("5", "the recipe's cap for the decoupled loss")
    return [
        TranslationNote("the recipe's default", f"++{key}={value}", why)
        for key, (value, why) in defaults.items()
        if key not in overrides
    ]


def recipe_differences(words: Sequence[str]) -> list[TranslationNote]:
    """Returns what is not taken over from the recipe, as far as it concerns this command line."""
    overrides = {override.key: override for override in map(VerlOverride.parse, words)}
    order, calls, log_probs = _DIFFERENCES
    in_order = overrides.get(f"{SECTION}.order")
    loss = overrides.get(_LOSS_MODE)
    return [
        *([order] if in_order is None or in_order.text != "completion" else []),
        calls,
        *([log_probs] if loss is not None and loss.text == "decoupled" else []),
    ]
