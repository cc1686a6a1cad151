"""Weights by name: of a model or a folder, whole or some rows, of a part of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rewardflow.errors import InvalidInput
from rewardflow.policy.weights_by_name import WeightSource, named, shapes_in, under, weights_in, weights_of

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


def indexed(folder: Path, **weight_map: str) -> Path:
    """A folder with shards of two saves, the earlier one with other numbers, and with averaged weights."""
    for place, file in enumerate(("model-00001-of-00001", "model-00001-of-00002", "model-00002-of-00002", "model_ema")):
        save_file({"model.a": torch.full((2,), float(place))}, folder / f"{file}.safetensors")
    index = {"metadata": {}, "weight_map": {name.replace("_", "."): file for name, file in weight_map.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_of_several_files_with_the_same_weights_those_of_the_index_are_read(tmp_path: Path) -> None:
    folder = indexed(tmp_path, model_a="model-00001-of-00002.safetensors")
    assert weights_in(folder)("model.a").tolist() == [1.0, 1.0]
    assert shapes_in(folder) == {"model.a": (2,)}


def test_a_single_file_comes_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    folder = indexed(tmp_path, model_a="model-00001-of-00002.safetensors")
    save_file({"model.a": torch.full((2,), 9.0)}, folder / "model.safetensors")
    assert weights_in(folder)("model.a").tolist() == [9.0, 9.0]


def test_an_index_that_names_a_missing_file_or_is_none_is_refused(tmp_path: Path) -> None:
    folder = indexed(tmp_path, model_a="model-00003-of-00003.safetensors")
    with pytest.raises(InvalidInput, match=r"names must be there, got no model-00003-of-00003\.safetensors"):
        weights_in(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InvalidInput, match="must be an index as save_pretrained writes it"):
        weights_in(folder)


def test_the_weights_of_a_module_are_those_of_its_state() -> None:
    model = torch.nn.Linear(2, 2)
    assert torch.equal(weights_of(model)("bias"), model.bias)
