"""AdamW for the stacked weights of many seeds.

Always true: every seed is updated by its own gradient, clipped by its own norm; a seed whose mini-batch trains on
nothing keeps its weights and its state, as in an ordinary run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rewardflow.settings.run_settings import OptimizerSettings

_CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class StackedAdamW:
    """Updates `weights`, whose first dimension is the seed, in place."""

    def __init__(self, weights: Sequence[Tensor], settings: OptimizerSettings) -> None:
        self._weights = weights
        self._settings = settings
        self._means = [torch.zeros_like(weight) for weight in weights]
        self._squares = [torch.zeros_like(weight) for weight in weights]
        self._num_updates_S = torch.zeros(len(weights[0]), dtype=torch.float64)

    def step(self, numerators_S: Tensor, denominators_S: Tensor, lr: float) -> None:
        """Differentiates each seed's loss, numerator / denominator, and takes a step down its gradient."""
        is_trained_S = denominators_S > 0
        scales_S = torch.where(is_trained_S, 1 / denominators_S, 0.0).float()
        gradients = torch.autograd.grad((numerators_S * scales_S).sum(), self._weights)
        with torch.no_grad():
            norms_S = torch.stack([gradient.flatten(1).square().sum(-1) for gradient in gradients]).sum(0).sqrt()
            most = self._settings.max_grad_norm
            factors_S = torch.ones_like(norms_S) if most is None else (most / (norms_S + _CLIP_EPS)).clamp(max=1.0)
            self._num_updates_S += is_trained_S
            self._move([_times(gradient, factors_S) for gradient in gradients], is_trained_S, lr)

    def _move(self, gradients: Sequence[Tensor], is_trained_S: Tensor, lr: float) -> None:
        first, second = self._settings.betas
        taken_S = is_trained_S.float()
        mean_scales_S = (lr / (1 - first ** self._num_updates_S.clamp(min=1))).float() * taken_S
        root_scales_S = (1 / (1 - second ** self._num_updates_S.clamp(min=1)).sqrt()).float()
        decay_S = lr * self._settings.weight_decay * taken_S
        for weight, gradient, mean, square in zip(self._weights, gradients, self._means, self._squares, strict=True):
            mean += _times(gradient - mean, (1 - first) * taken_S)
            square += _times(gradient.square() - square, (1 - second) * taken_S)
            if self._settings.weight_decay:
                weight -= _times(weight, decay_S)
            weight -= _times(mean, mean_scales_S) / (_times(square.sqrt(), root_scales_S) + self._settings.eps)


def _times(values: Tensor, by_S: Tensor) -> Tensor:
    """Multiplies the values of each seed by its own factor."""
    return values * by_S.view(-1, *[1] * (values.ndim - 1))
