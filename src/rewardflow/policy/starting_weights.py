"""The weights that a trainer starts from: those of a loaded policy, or of a folder of safetensors.

Always true: both give the same weights; a folder is read one weight at a time, and only what a rank asks for. The
policy itself stays unchanged, so it may be used for generating.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rewardflow.policy.load_policy import Policy, load_policy, outline_policy
from rewardflow.policy.weights_by_name import ALL_ROWS, WeightSource, weights_in, weights_of
from rewardflow.settings.run_settings import PolicySettings


@dataclass(frozen=True, slots=True)
class StartingWeights:
    """A policy to be trained, which may be an outline, and its weights by name."""

    policy: Policy
    source: WeightSource

    @classmethod
    def of(cls, policy: Policy) -> StartingWeights:
        return cls(policy, weights_of(policy.model))

    @classmethod
    def read(cls, settings: PolicySettings, *, seed: int) -> StartingWeights:
        """Gives an outline, and the weights that the loaded policy would have.

        The policy is loaded, whole and into host memory, only where its folder does not hold the weights themselves.
        """
        outline = outline_policy(settings)
        folder = Path(settings.model).expanduser()
        if not _holds_plain_weights(folder):
            return cls(outline, weights_of(load_policy(settings, seed=seed).model))
        stored, dtype = weights_in(folder), getattr(torch, settings.dtype)

        def weight(name: str, rows: slice = ALL_ROWS, /) -> Tensor:
            return stored(name, rows).to(dtype)

        return cls(outline, weight)


def _holds_plain_weights(folder: Path) -> bool:
    """Whether the folder has the weights themselves, not such as transformers would combine from several sources."""
    return any(folder.glob("model*.safetensors")) and not (folder / "adapter_config.json").exists()
