"""The weights that a Megatron trainer starts from: those of a loaded policy, or of a folder of safetensors.

Always true: both give the same weights; a folder is read one weight at a time, and only for the weights that a rank
asks for. The policy itself stays unchanged, so it may be used for generating.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardflow.settings.run_settings import PolicySettings

if TYPE_CHECKING:
    from rewardflow.policy.load_policy import Policy
    from rewardflow.train.megatron.weight_conversion import WeightSource


@dataclass(frozen=True, slots=True)
class StartingWeights:
    """A model to be trained: its configuration of transformers, and its weights by name."""

    config: Any
    source: WeightSource

    @classmethod
    def of(cls, policy: Policy) -> StartingWeights:
        from rewardflow.train.megatron.weight_conversion import weights_of

        return cls(policy.model.config, weights_of(policy.model))

    @classmethod
    def read(cls, settings: PolicySettings, *, seed: int) -> StartingWeights:
        """Gives what `of` would give of the loaded policy, without loading one where that is possible."""
        import torch

        from rewardflow.policy.load_policy import load_policy, outline_policy
        from rewardflow.train.megatron.weight_conversion import weights_in

        folder = Path(settings.model).expanduser()
        if not _holds_plain_weights(folder):
            return cls.of(load_policy(settings, seed=seed))
        stored, dtype = weights_in(folder), getattr(torch, settings.dtype)
        return cls(outline_policy(settings).model.config, lambda name: stored(name).to(dtype))


def _holds_plain_weights(folder: Path) -> bool:
    """Whether the folder has the weights themselves, not such as transformers would combine from several sources."""
    return any(folder.glob("model*.safetensors")) and not (folder / "adapter_config.json").exists()
