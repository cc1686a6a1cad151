"""Stacked seeds are updated as torch's AdamW would update each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from rewardflow.bench.learning.stacked_adamw import StackedAdamW
from rewardflow.settings.run_settings import OptimizerSettings

SETTINGS = OptimizerSettings(lr=0.1, weight_decay=0.01, max_grad_norm=0.5)
TARGETS_S = torch.tensor([1.0, -3.0])


def loss_of(weight: Tensor, target: Tensor) -> Tensor:
    return (weight - target).square().sum(-1)


def test_each_seed_moves_as_with_an_optimizer_of_its_own() -> None:
    stacked = torch.tensor([[0.0, 2.0], [1.0, 0.0]], requires_grad=True)
    alone = [row.detach().clone().requires_grad_() for row in stacked]
    together = StackedAdamW([stacked], SETTINGS)
    torchs = [torch.optim.AdamW([one], lr=0.1, weight_decay=0.01) for one in alone]
    for _ in range(5):
        together.step(4 * loss_of(stacked, TARGETS_S[:, None]), torch.full((2,), 4.0, dtype=torch.float64), 0.1)
        for one, optimizer, target in zip(alone, torchs, TARGETS_S, strict=True):
            optimizer.zero_grad()
            loss_of(one, target).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_([one], 0.5)
            optimizer.step()
    torch.testing.assert_close(stacked.detach(), torch.stack([one.detach() for one in alone]))


def test_a_seed_without_anything_to_train_on_stays_as_it_is() -> None:
    weight = torch.ones(2, 3, requires_grad=True)
    optimizer = StackedAdamW([weight], SETTINGS)
    for denominators in ([1.0, 1.0], [1.0, 0.0]):
        before = weight.detach().clone()
        optimizer.step(loss_of(weight, TARGETS_S[:, None] + 5), torch.tensor(denominators, dtype=torch.float64), 0.1)
    assert torch.equal(weight[1], before[1])
    assert not torch.equal(weight[0], before[0])
