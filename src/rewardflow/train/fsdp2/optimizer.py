"""Turns the accumulated gradient into new weights: rescale, then clip, then step.

Always true: the reported norm is that of the loss's gradient, however it was accumulated; a gradient that is not finite
changes neither weights nor optimizer state; gradients are cleared afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import OptimizerSettings
from rewardflow.train.fsdp2.sharding import whole

# Where torch updates a weight in one pass over it, instead of a dozen.
_FUSED = frozenset(("cpu", "cuda", "xpu", "mps"))


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """Builds AdamW over the trainable weights, which must be float32: less would round updates away."""
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not trainable:
        raise InvalidInput("a model to train needs weights that require gradients, got none")
    for name, weight in trainable.items():
        if weight.dtype != torch.float32:
            raise InvalidInput(
                "trainable weights must be float32, because their gradients add up in the same dtype; load them with "
                f"policy.dtype=float32 and compute in less with trainer.autocast=bfloat16, got {weight.dtype} in {name}"
            )
    return AdamW(
        trainable.values(),
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=all(weight.device.type in _FUSED for weight in trainable.values()) or None,
    )


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def update(optimizer: Optimizer, *, scale: float, max_grad_norm: float | None) -> float:
    """Scales the gradient, clips it and takes the step, unless its norm is not finite; returns the unclipped norm."""
    grads = [weight.grad for weight in _weights(optimizer) if weight.grad is not None]
    for grad in grads:
        grad.mul_(scale)
    norm = whole(get_total_norm(grads))
    grad_norm = float(norm)
    if math.isfinite(grad_norm):
        if max_grad_norm is not None:
            clip_grads_with_norm_(_weights(optimizer), max_grad_norm, norm)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return grad_norm


def fill_with_zeros(optimizer: Optimizer) -> None:
    """Sets a zero gradient for an update without passes: momentum decays as if passes had been made."""
    for weight in _weights(optimizer):
        weight.grad = torch.zeros_like(weight)


def move_state(optimizer: Optimizer, device: torch.device | None) -> None:
    """Moves the optimizer's state to a device, or with None to the device of each weight.

    Counters are single numbers, and leave no device. They come to that of their weight if the update reads them there.
    """
    for group in optimizer.param_groups:
        counts_there = device is None and (group.get("fused") or group.get("capturable"))
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            for name, value in state.items():
                if isinstance(value, Tensor) and (value.ndim or counts_there):
                    state[name] = value.to(device or weight.device)


def _weights(optimizer: Optimizer) -> Iterable[Tensor]:
    return (weight for group in optimizer.param_groups for weight in group["params"])
