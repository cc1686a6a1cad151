"""Rescale, then clip, then step; and nothing of a gradient that is not finite."""

import math

import pytest
import torch
from torch import nn

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import TrainerSettings
from rewardflow.train.fsdp2.optimizer import build_optimizer, fill_with_zeros, move_state, set_learning_rate, update


def two_weights() -> nn.Linear:
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def with_gradient(layer: nn.Linear, *gradient: float) -> torch.optim.Optimizer:
    layer.weight.grad = torch.tensor([gradient])
    return build_optimizer(layer, TrainerSettings(lr=0.1))


def first_moment(optimizer: torch.optim.Optimizer, layer: nn.Linear) -> list[float]:
    return [10 * value for value in optimizer.state[layer.weight]["exp_avg"].flatten().tolist()]


def test_the_norm_is_that_of_the_rescaled_gradient_and_clipping_comes_after() -> None:
    layer = two_weights()
    optimizer = with_gradient(layer, 30.0, 40.0)
    assert update(optimizer, scale=0.1, max_grad_norm=1.0) == pytest.approx(5.0)
    assert first_moment(optimizer, layer) == pytest.approx([0.6, 0.8], rel=1e-5)
    assert layer.weight.grad is None


def test_a_gradient_within_the_limit_or_without_one_is_stepped_on_as_it_is() -> None:
    for limit in (6.0, None):
        layer = two_weights()
        optimizer = with_gradient(layer, 30.0, 40.0)
        update(optimizer, scale=0.1, max_grad_norm=limit)
        assert first_moment(optimizer, layer) == pytest.approx([3.0, 4.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_state(bad: float) -> None:
    layer = two_weights()
    optimizer = with_gradient(layer, 1.0, bad)
    assert not math.isfinite(update(optimizer, scale=1.0, max_grad_norm=1.0))
    assert layer.weight.tolist() == [[0.0, 0.0]]
    assert not optimizer.state
    assert layer.weight.grad is None


def test_zeros_are_a_gradient_that_momentum_outlives() -> None:
    layer = two_weights()
    optimizer = with_gradient(layer, 1.0, 1.0)
    update(optimizer, scale=1.0, max_grad_norm=None)
    before = layer.weight.detach().clone()
    fill_with_zeros(optimizer)
    assert update(optimizer, scale=1.0, max_grad_norm=1.0) == 0.0
    assert (layer.weight < before).all()


def test_the_learning_rate_is_that_of_every_group() -> None:
    optimizer = build_optimizer(two_weights(), TrainerSettings())
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5]


def test_state_leaves_the_device_whole_but_for_its_counters_and_comes_back_as_it_was() -> None:
    layer = two_weights()
    optimizer = with_gradient(layer, 1.0, 2.0)
    update(optimizer, scale=1.0, max_grad_norm=None)
    before = {name: value.clone() for name, value in optimizer.state[layer.weight].items()}
    move_state(optimizer, torch.device("cpu"))
    move_state(optimizer, None)
    after = optimizer.state[layer.weight]
    assert all(torch.equal(after[name], value) for name, value in before.items())

    move_state(optimizer, torch.device("meta"))
    assert {name: value.device.type for name, value in after.items()} == {
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
        "step": "cpu",
    }


def test_counters_come_to_the_weights_where_a_fused_update_reads_them() -> None:
    weight = nn.Parameter(torch.zeros(3, device="meta"))  # stands for a GPU
    optimizer = torch.optim.AdamW([weight], capturable=True)
    moments = {name: torch.zeros(3) for name in ("exp_avg", "exp_avg_sq")}  # read while all of it was on the host
    optimizer.state[weight] = {"step": torch.tensor(5.0), **moments}
    move_state(optimizer, None)
    assert {value.device.type for value in optimizer.state[weight].values()} == {"meta"}


def test_frozen_weights_may_have_any_dtype_and_trainable_ones_must_be_float32() -> None:
    model = nn.Sequential(nn.Linear(2, 2).bfloat16(), nn.Linear(2, 1))
    with pytest.raises(InvalidInput, match=r"got torch\.bfloat16 in 0\.weight"):
        build_optimizer(model, TrainerSettings())
    model[0].requires_grad_(False)
    assert len(build_optimizer(model, TrainerSettings()).param_groups[0]["params"]) == 2
    with pytest.raises(InvalidInput, match="got none"):
        build_optimizer(model.requires_grad_(False), TrainerSettings())
