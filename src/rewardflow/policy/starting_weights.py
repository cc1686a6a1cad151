"""The weights that a trainer starts from: those of a loaded policy, or of a folder of safetensors.

Always true: both give the same weights; a folder is read one weight at a time, and only what a rank asks for. A model
on the hub is read from the folder into which it is downloaded. The policy itself stays unchanged, so it may be used for
generating.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rewardflow.policy.hub_snapshot import snapshot_folder
from rewardflow.policy.load_policy import Policy, load_policy, outline_policy
from rewardflow.policy.model_place import TINY, ModelPlace
from rewardflow.policy.weights_by_name import ALL_ROWS, WeightSource, shapes_in, weights_in, weights_of
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

        The policy is loaded, whole and into host memory, only where no folder holds the weights under their names.
        """
        outline = outline_policy(settings)
        folder = _folder(settings)
        if folder is None or not _holds_weights_of(outline, folder):
            return cls(outline, weights_of(load_policy(settings, seed=seed).model))
        stored, dtype = weights_in(folder), getattr(torch, settings.dtype)

        def weight(name: str, rows: slice = ALL_ROWS, /) -> Tensor:
            return stored(name, rows).to(dtype)

        return cls(outline, weight)


def _folder(settings: PolicySettings) -> Path | None:
    """Returns the folder that holds the model's files; None where it has none, or is a single file."""
    if settings.model == TINY:
        return None
    place = ModelPlace.of(settings)
    if place.gguf_file is not None:
        return None
    return Path(place.name) if place.is_local else snapshot_folder(place.name)


def _holds_weights_of(policy: Policy, folder: Path) -> bool:
    """Whether the folder has every weight itself, not such as transformers would rename, unpack, combine or refuse."""
    model = policy.model
    is_packed = getattr(model.config, "quantization_config", None) is not None
    if is_packed or (folder / "adapter_config.json").exists() or not any(folder.glob("model*.safetensors")):
        return False
    saved, stored = model.state_dict().keys(), shapes_in(folder)
    needed = (one for one in (*model.named_parameters(), *model.named_buffers()) if one[0] in saved)
    return all(stored.get(name) == tuple(weight.shape) for name, weight in needed)
