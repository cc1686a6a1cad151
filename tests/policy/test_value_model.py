"""The value model: built from the policy or another model, without changing the policy or the random state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from rewardflow.errors import InvalidInput
from rewardflow.policy.load_policy import Policy, load_policy, outline_policy
from rewardflow.policy.value_model import ValueModel, build_value_model
from rewardflow.settings.run_settings import CriticSettings, PolicySettings

TINY = PolicySettings(tiny_hidden=16, tiny_layers=1)
POLICY = load_policy(TINY, seed=0)


def built(critic: CriticSettings, policy: Policy = POLICY) -> ValueModel:
    return build_value_model(policy, critic, TINY, seed=0)


def test_a_value_model_starts_as_a_copy_of_the_policys_trunk_and_values_everything_at_0() -> None:
    model = built(CriticSettings())
    trunk = dict(POLICY.model.base_model.named_parameters())
    assert model.trunk is not None
    own = dict(model.trunk.named_parameters())
    assert own.keys() == trunk.keys()
    assert all(torch.equal(own[name], trunk[name]) and own[name] is not trunk[name] for name in own)
    assert model.of_hidden(torch.randn(3, 16)).tolist() == [0.0, 0.0, 0.0]


def test_a_head_has_no_trunk_and_is_float32_whatever_it_is_given() -> None:
    model = built(CriticSettings(form="head"))
    assert model.trunk is None
    assert sum(weight.numel() for weight in model.parameters()) == 17
    assert model.of_hidden(torch.randn(3, 16, dtype=torch.bfloat16)).dtype == torch.float32


def test_building_one_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    built(CriticSettings())
    built(CriticSettings(form="head"))
    assert torch.equal(torch.get_rng_state(), before)


def test_another_model_may_be_the_trunk_and_is_read_from_its_folder(tmp_path: Path) -> None:
    other = load_policy(replace(TINY, tiny_hidden=24), seed=5)
    other.model.save_pretrained(tmp_path)
    other.tokenizer.save_pretrained(tmp_path)
    model = built(CriticSettings(model=str(tmp_path)))
    assert model.trunk is not None
    expected = other.model.base_model.get_input_embeddings().weight
    assert torch.equal(model.trunk.get_input_embeddings().weight, expected)  # type: ignore[operator]
    assert model.head.in_features == 24
    with pytest.raises(
        InvalidInput, match=r"critic\.model=\./nowhere is loaded as policy\.model is, but policy\.model must be a path"
    ):
        built(CriticSettings(model="./nowhere"))


def test_of_a_policy_without_weights_it_has_none_either() -> None:
    model = built(CriticSettings(), outline_policy(TINY))
    assert {weight.device.type for weight in model.parameters()} == {"meta"}


@pytest.mark.parametrize("load", [partial(load_policy, seed=0), outline_policy])
def test_a_trunk_is_float32_where_the_policys_weights_are_not(load: Callable[[PolicySettings], Policy]) -> None:
    settings = replace(TINY, dtype="bfloat16")
    policy = load(settings)
    model = build_value_model(policy, CriticSettings(), settings, seed=0)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.bfloat16}
