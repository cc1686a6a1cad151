"""Translates words of older verl releases, which verl 0.9 refuses, ignores or keeps elsewhere.

Always true: a translated word asks for the same training; a word that cannot be translated is kept, so that the checks
of the whole configuration see it.
"""

from __future__ import annotations

from collections.abc import Mapping

from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.adapters.verl.launch.recipe import renamed_to
from rewardflow.adapters.verl.launch.rewriting import Rewritten

_IGNORED = "verl ignores the old name"

# Sections that verl's configuration still has and its v1 trainer ignores, and where their settings are.
_MOVED: Mapping[str, str] = {
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model": "reward.reward_model",
    "sandbox_fusion": "reward.sandbox_fusion",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "actor_rollout_ref.actor.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",
    "critic.grad_clip": "critic.optim.clip_grad",
}
_GRAD_OFFLOAD = "megatron.grad_offload"


def rewrite_old(override: VerlOverride) -> Rewritten | None:
    """Translates one word. None keeps it as it is."""
    if override.key.endswith(_GRAD_OFFLOAD):
        return Rewritten((), "verl 0.9.1 has no such setting; param_offload releases the gradients' memory too")
    if override.key.startswith("custom_reward_function.reward_kwargs"):
        return Rewritten((str(VerlOverride(f"reward.{override.key}", override.value, "+")),), _IGNORED)
    for old, place in _MOVED.items():
        if override.key == old or override.key.startswith(f"{old}."):
            return renamed_to(f"{place}{override.key[len(old) :]}", _IGNORED, mark=override.mark)(override)
    return None
