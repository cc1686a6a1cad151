"""The gradient of an update written down row by row, with nothing accumulated, packed or skipped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tiny_training import MAX_RESPONSE_TOKENS, TEMPERATURE
from torch import Tensor, nn

from rewardflow.flow.records import Sample
from rewardflow.settings.run_settings import AlgorithmSettings
from rewardflow.train.packing import TokenRow


def plain_gradient(model: nn.Module, samples: Sequence[Sample], algorithm: AlgorithmSettings) -> Tensor:
    return _flat(torch.autograd.grad(plain_loss(model, samples, algorithm), list(model.parameters())))


def plain_loss(model: nn.Module, samples: Sequence[Sample], algorithm: AlgorithmSettings) -> Tensor:
    rows = [_token_losses(model, sample, algorithm) for sample in samples if sample.is_scored]
    match algorithm.aggregation:
        case "token_mean":
            return torch.cat(rows).mean()
        case "seq_mean_token_sum":
            return torch.stack([row.sum() for row in rows]).mean()
        case "seq_mean_token_mean":
            return torch.stack([row.mean() for row in rows]).mean()
        case "fixed_length":
            return torch.stack([row.sum() for row in rows]).mean() / MAX_RESPONSE_TOKENS


def _token_losses(model: nn.Module, sample: Sample, algorithm: AlgorithmSettings) -> Tensor:
    row = TokenRow.of(sample.rollout)
    all_LV = (model(input_ids=torch.tensor([row.token_ids])).logits[0] / TEMPERATURE).log_softmax(-1)
    at_T = torch.tensor(row.sampled)
    log_probs_T = all_LV[at_T - 1, torch.tensor(row.token_ids)[at_T]]
    entropy_T = -(all_LV.exp() * all_LV).sum(-1)[at_T - 1]

    saved = sample.precomputed
    advantage = sample.advantage
    ratio_T = (log_probs_T - saved.old).exp()
    loss_T = torch.maximum(
        -advantage * ratio_T, -advantage * ratio_T.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    )
    if advantage < 0 and algorithm.dual_clip is not None:
        loss_T = loss_T.clamp(max=-advantage * algorithm.dual_clip)
    if algorithm.loss == "decoupled":
        weight_T = (saved.old - saved.behaviour).exp()
        loss_T = loss_T * weight_T * (weight_T <= (algorithm.behaviour_weight_cap or torch.inf))
    if algorithm.kl_coef:
        backwards_T = saved.reference - log_probs_T
        loss_T = loss_T + algorithm.kl_coef * (backwards_T.exp() - 1 - backwards_T).clamp(max=10.0)
    return loss_T - algorithm.entropy_coef * entropy_T


def gradient_stepped_on(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    """What the optimizer's first step was given, read from its first moment."""
    (beta, _) = optimizer.param_groups[0]["betas"]
    return _flat([optimizer.state[weight]["exp_avg"] / (1 - beta) for weight in model.parameters()])


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])
