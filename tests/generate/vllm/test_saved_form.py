"""Weights in the form that transformers saves, whatever the order in which they come."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_models import dense, mixture
from torch import Tensor
from transformers import PreTrainedModel

from rewardflow.errors import FlowError
from rewardflow.generate.vllm.saved_form import SavedForm

torch.set_num_threads(1)

MODELS = {"dense": dense(is_tied=False), "tied": dense(is_tied=True), "mixture": mixture()}


def weights_of(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """With what is not saved, such as the table of rotations."""
    return [*model.named_parameters(), *model.named_buffers()]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, model in MODELS.items():
        folder: Path = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        found[name] = load_file(folder / "model.safetensors")
    return found


@given(name=st.sampled_from(sorted(MODELS)), order=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=20)
def test_any_order_gives_what_transformers_saves(
    saved: dict[str, dict[str, Tensor]], name: str, order: st.DataObject
) -> None:
    model = MODELS[name]
    form = SavedForm(model, torch.float32)
    for _ in range(2):  # it can be used again
        form.begin()
        given_weights = weights_of(model)
        order.shuffle(given_weights)  # type: ignore[attr-defined]
        found = {key: one for given_name, weight in given_weights for key, one in form.put(given_name, weight)}
        form.check_complete()
        assert found.keys() == saved[name].keys()
        assert all(torch.equal(one, saved[name][key]) for key, one in found.items())


def test_a_weight_that_is_saved_as_it_is_waits_for_no_other() -> None:
    model = MODELS["dense"]
    form = SavedForm(model, torch.bfloat16)
    for name, weight in model.named_parameters():
        ((key, one),) = form.put(name, weight)
        assert key == name
        assert torch.equal(one, weight.bfloat16())


def test_an_outline_knows_as_much_as_the_model() -> None:
    model = MODELS["mixture"]
    with torch.device("meta"):
        outline = mixture()
    form, other = SavedForm(model, torch.bfloat16), SavedForm(outline, torch.bfloat16)
    assert form.size == other.size
    assert form.size.num_bytes == 2 * sum(one.numel() for one in model.parameters())
    names = [key for name, weight in weights_of(model) for key, _ in other.put(name, weight)]
    assert sorted(names) == sorted(key for name, weight in weights_of(model) for key, _ in form.put(name, weight))


def test_a_weight_that_comes_twice_or_is_none_of_the_policys_is_refused() -> None:
    form = SavedForm(MODELS["dense"], torch.float32)
    list(form.put("lm_head.weight", torch.zeros(32, 16)))
    with pytest.raises(FlowError, match=r"each once, got lm_head.weight twice"):
        list(form.put("lm_head.weight", torch.zeros(32, 16)))
    with pytest.raises(FlowError, match=r"got other.weight which is none of them"):
        list(form.put("other.weight", torch.zeros(1)))


def test_weights_that_did_not_come_are_named() -> None:
    form = SavedForm(MODELS["tied"], torch.float32)
    for name, weight in MODELS["tied"].named_parameters():
        if name != "model.norm.weight":
            list(form.put(name, weight))
    with pytest.raises(FlowError, match=r"got none for model.norm.weight"):
        form.check_complete()
