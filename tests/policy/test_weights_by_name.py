"""Weights by name: of a model or a folder, whole or some rows, of a part of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rewardflow.errors import InvalidInput
from rewardflow.policy.weights_by_name import WeightSource, named, under, weights_in, weights_of

WEIGHTS = {"model.a": torch.arange(12.0).reshape(4, 3), "model.b": torch.ones(2)}


def sources(folder: Path) -> list[WeightSource]:
    save_file({"model.a": WEIGHTS["model.a"]}, folder / "one.safetensors")
    save_file({"model.b": WEIGHTS["model.b"]}, folder / "two.safetensors")
    return [named(WEIGHTS), weights_in(folder)]


def test_a_mapping_and_a_folder_give_the_same_weights_and_rows(tmp_path: Path) -> None:
    for source in sources(tmp_path):
        assert torch.equal(source("model.a"), WEIGHTS["model.a"])
        assert torch.equal(source("model.a", slice(1, 3)), WEIGHTS["model.a"][1:3])
        assert source("model.a", slice(4, 4)).shape == (0, 3)
        assert torch.equal(under("model.", source)("b", slice(0, 1)), torch.ones(1))


def test_a_weight_that_is_missing_is_named(tmp_path: Path) -> None:
    for source in sources(tmp_path):
        with pytest.raises(InvalidInput, match=r"must have the weight model\.c"):
            source("model.c")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="files of safetensors"):
        weights_in(tmp_path)


def test_the_weights_of_a_module_are_those_of_its_state() -> None:
    model = torch.nn.Linear(2, 2)
    assert torch.equal(weights_of(model)("bias"), model.bias)
