"""Copies a trainer's weights into an engine's module, by name, some at a time.

Always true: a weight that the module does not have, or has in another shape, is an error and not a guess; an update
gives every parameter once, or fails. At most one weight at a time exists a second time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rewardflow.errors import FlowError
from rewardflow.generate.engines import NamedTensors

_MAX_NAMES = 3  # in an error message


class WeightUpdate:
    """Copies into the parameters and buffers of `module`, in place, while nobody computes with it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen: set[str] = set()  # by the present update

    @torch.no_grad()
    def put(self, weights: NamedTensors) -> None:
        """Copies a part of the weights; tied weights have one name."""
        targets: dict[str, Tensor] = dict((*self._module.named_parameters(), *self._module.named_buffers()))
        for name, weight in weights:
            target = targets.get(name)
            if target is None or target.shape != weight.shape:
                found = "no weight of that name" if target is None else f"one of shape {tuple(target.shape)}"
                raise FlowError(
                    "a published weight must be one of the generator's, "
                    f"got {name} of shape {tuple(weight.shape)} for {found}"
                )
            if name in self._seen:
                raise FlowError(f"a published weight must come once, got {name} of shape {tuple(weight.shape)} twice")
            self._seen.add(name)
            target.copy_(weight)

    def end(self) -> None:
        """Ends the update, which must have every parameter; an update without any weight changes nothing."""
        seen, self._seen = self._seen, set()
        missing = [(name, one) for name, one in self._module.named_parameters() if name not in seen] if seen else []
        if missing:
            named = ", ".join(f"{name} of shape {tuple(one.shape)}" for name, one in missing[:_MAX_NAMES])
            others = f" and {len(missing) - _MAX_NAMES} others" if len(missing) > _MAX_NAMES else ""
            raise FlowError(f"published weights must be all of the generator's, got none for {named}{others}")
