"""The trainer's weights as vLLM takes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_models import dense, mixture
from transformers import PreTrainedModel

from rewardflow.generate.vllm.weight_source import ModelWeights, chunks, in_memory_folder, read_chunk, write_chunk

torch.set_num_threads(1)


@pytest.mark.parametrize(
    "model", [dense(is_tied=False), dense(is_tied=True), mixture()], ids=["dense", "tied", "mixture"]
)
def test_weights_have_the_names_and_values_that_transformers_saves(tmp_path: Path, model: PreTrainedModel) -> None:
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    given = dict(ModelWeights(model, torch.float32))
    assert given.keys() == saved.keys()
    for name, weight in given.items():
        assert torch.equal(weight, saved[name])


def test_weights_that_somebody_else_gives_by_name_are_told_in_the_order_in_which_they_come() -> None:
    model = dense(is_tied=True)
    with torch.device("meta"):
        outline = dense(is_tied=True)
    given = list(model.named_parameters())[::-1]
    weights = ModelWeights(outline, torch.float32, lambda: given)
    assert [one.name for one in weights.metadata()] == [name for name, _ in given]
    assert all(torch.equal(one, dict(given)[name]) for name, one in weights)


def test_metadata_tell_what_will_come(tmp_path: Path) -> None:
    weights = ModelWeights(dense(is_tied=False), torch.bfloat16)
    told = [(one.name, one.dtype, one.shape) for one in weights.metadata()]
    assert told == [(name, weight.dtype, tuple(weight.shape)) for name, weight in weights]
    assert weights.size.num_bytes == sum(weight.nbytes for _, weight in weights)
    assert weights.size.largest_bytes == max(weight.nbytes for _, weight in weights)


def test_weights_are_those_of_the_moment_in_the_dtype_of_the_engine() -> None:
    model = dense(is_tied=False)
    weights = ModelWeights(model, torch.bfloat16)
    before = dict(weights)
    with torch.no_grad():
        model.lm_head.weight += 1
    after = dict(weights)
    assert after["lm_head.weight"].dtype == torch.bfloat16
    assert torch.equal(after["lm_head.weight"], model.lm_head.weight.bfloat16())
    assert not torch.equal(after["lm_head.weight"], before["lm_head.weight"])


@given(st.lists(st.integers(1, 50)), st.integers(1, 100))
def test_chunks_hold_every_weight_once_in_order_and_no_more_than_fits(sizes: list[int], max_bytes: int) -> None:
    weights = [(str(i), torch.zeros(size, dtype=torch.uint8)) for i, size in enumerate(sizes)]
    found = list(chunks(weights, max_bytes))
    assert [name for chunk in found for name in chunk] == [name for name, _ in weights]
    for chunk in found:
        assert len(chunk) == 1 or sum(weight.nbytes for weight in chunk.values()) <= max_bytes


def test_a_chunk_comes_back_from_its_file_bit_for_bit_and_the_folder_is_gone_afterwards() -> None:
    chunk = {"b": torch.randn(3, 5), "a": torch.randn(7).bfloat16()}
    with in_memory_folder(1000) as folder:
        write_chunk(chunk, folder / "0.safetensors")
        found = dict(read_chunk(str(folder / "0.safetensors")))
    assert not folder.exists()
    assert found.keys() == chunk.keys()
    assert all(torch.equal(found[name], chunk[name]) for name in chunk)


def test_what_does_not_fit_into_memory_goes_to_the_disk() -> None:
    with in_memory_folder(2**60) as folder:
        assert not folder.is_relative_to("/dev/shm")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system keeps no files in memory")
def test_there_must_be_room_for_the_files_of_all_who_write_at_the_same_time() -> None:
    third = shutil.disk_usage("/dev/shm").free // 3
    with in_memory_folder(third) as alone, in_memory_folder(third, num_writers=8) as one_of_eight:
        assert alone.is_relative_to("/dev/shm")
        assert not one_of_eight.is_relative_to("/dev/shm")
