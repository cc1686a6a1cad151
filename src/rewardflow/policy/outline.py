"""Builds a model without memory for its weights: they have names, shapes and dtypes but no values.

Always true: weights are on the meta device, and buffers, which no file holds, have their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rewardflow.errors import InvalidInput

M = TypeVar("M", bound=nn.Module)


def outlined(build: Callable[[], M]) -> M:
    """Returns what `build` returns, without room for its weights."""
    with _NoRoom():
        model = build()
    _drop_values(model)
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise InvalidInput(
                "a model must compute its buffers when it is built, so that it can be read in parts, "
                f"got {type(model).__name__}, which fills {name} later"
            )
    return model


class _NoRoom(TorchFunctionMode):
    """Gives no memory to `torch.empty`, which is how modules make room for weights; buffers are computed."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def set_weight_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Changes the dtype of a model's weights. Buffers keep theirs: rounded frequencies would change every token."""
    _replace_weights(model, lambda weight: weight.to(dtype))


def give_room(outline: nn.Module, device: torch.device) -> None:
    """Gives memory on the device to an outline's weights, without values, and moves its buffers there."""
    _replace_weights(outline, lambda weight: torch.empty_like(weight, device=device))
    for module in outline.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def _drop_values(model: nn.Module) -> None:
    """Moves weights that were made with values, such as the ones of a norm, to the meta device."""
    _replace_weights(model, lambda weight: weight.to("meta"))


def _replace_weights(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Replaces each weight by what `change` returns; a weight that is used twice stays one weight."""
    changed: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if weight not in changed:
                changed[weight] = nn.Parameter(change(weight.detach()), weight.requires_grad)
            module.register_parameter(name, changed[weight])
