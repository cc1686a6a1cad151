"""A module whose weights come by name, some at a time, from wherever the trainer is.

Always true: a weight that the module does not have, or has in another shape, is an error and not a guess.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rewardflow.errors import FlowError


class WeightsByName:
    """`put` copies into the module, in place; nobody computes with it meanwhile."""

    def __init__(self, module: nn.Module) -> None:
        self._places: dict[str, Tensor] = dict((*module.named_parameters(), *module.named_buffers()))

    @torch.no_grad()
    def put(self, name: str, weight: Tensor) -> None:
        place = self._places.get(name)
        if place is None or place.shape != weight.shape:
            found = "no weight of that name" if place is None else f"one of shape {tuple(place.shape)}"
            raise FlowError(
                "a published weight must be one of the generator's, "
                f"got {name} of shape {tuple(weight.shape)} for {found}"
            )
        place.copy_(weight)
