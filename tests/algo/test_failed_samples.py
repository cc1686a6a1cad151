"""The whole chain, from logits to the gradient: a failed sample is as if it had never been generated."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from rewardflow.algo.aggregation import denominator, numerator, token_weights, trained_mask
from rewardflow.algo.kl import kl_to_reference
from rewardflow.algo.losses import policy_loss
from rewardflow.algo.token_softmax import token_softmax
from rewardflow.settings.run_settings import Aggregation, AlgorithmSettings

SETTINGS = AlgorithmSettings(loss="decoupled", kl_coef=0.1, entropy_coef=0.01)
NAN = float("nan")


class Batch:
    """Four rollouts of five tokens over seven words, from a seed; what a loss needs beside the logits is fixed."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.logits_BTV = torch.randn(4, 5, 7, generator=generator)
        self.words_BT = torch.randint(7, (4, 5), generator=generator)
        self.sampled_BT = torch.rand(4, 5, generator=generator) > 0.3
        self.fixed_BT = {name: torch.randn(4, 5, generator=generator) for name in ("advantages", "reference")}
        for name in ("old", "behaviour"):
            self.fixed_BT[name] = self.scores(self.logits_BTV)[0] + 0.2 * torch.randn(4, 5, generator=generator)

    def scores(self, logits_BTV: Tensor, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        words_BT = self.words_BT[rows]
        log_probs_N, entropy_N = token_softmax(logits_BTV.flatten(0, 1), words_BT.flatten(), entropy="trained")
        assert entropy_N is not None
        return log_probs_N.view(words_BT.shape), entropy_N.view(words_BT.shape)


def gradient(batch: Batch, aggregation: Aggregation, scored_B: Tensor, rows: Tensor) -> Tensor:
    """The gradient of the loss of these rows, by all logits."""
    logits_BTV = batch.logits_BTV.clone().requires_grad_()
    mask_BT = trained_mask(batch.sampled_BT[rows], scored_B[rows])
    fixed_BT = {name: tensor[rows] for name, tensor in batch.fixed_BT.items()}
    log_probs_BT, entropy_BT = batch.scores(logits_BTV[rows], rows)
    policy = policy_loss(
        SETTINGS,
        log_probs_BT=log_probs_BT,
        old_BT=fixed_BT["old"],
        behaviour_BT=fixed_BT["behaviour"],
        advantages_BT=fixed_BT["advantages"],
        mask_BT=mask_BT,
    )
    kl_BT = kl_to_reference(log_probs_BT, fixed_BT["reference"], mask_BT)
    loss_BT = policy.loss_BT + SETTINGS.kl_coef * kl_BT - SETTINGS.entropy_coef * entropy_BT
    below = denominator(aggregation, mask_BT, scored_B[rows], 5)
    (numerator(loss_BT, token_weights(aggregation, mask_BT)) / below).backward()
    assert logits_BTV.grad is not None
    return logits_BTV.grad


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_a_batch_with_a_failure_has_exactly_the_gradient_of_the_batch_without_the_sample(
    aggregation: Aggregation,
) -> None:
    batch, scored_B = Batch(), torch.tensor([True, True, False, True])
    for tensor in batch.fixed_BT.values():
        tensor[2] = NAN
    among_others = gradient(batch, aggregation, scored_B, torch.tensor([0, 1, 2, 3]))
    without = gradient(batch, aggregation, scored_B, torch.tensor([0, 1, 3]))
    torch.testing.assert_close(among_others, without)
    assert torch.equal(among_others[2], torch.zeros(5, 7))
    assert all(among_others[row].any() for row in (0, 1, 3))
