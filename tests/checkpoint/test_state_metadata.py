"""Metadata of tensors, read without running what a file says."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from state_ranks import adam, model_of, step, weights
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata

from rewardflow.checkpoint.model_state import read_state, state_of, write_state
from rewardflow.checkpoint.state_metadata import METADATA_FILE, read_metadata
from rewardflow.errors import CheckpointError


class Runs:
    """Creates a file as soon as somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = model_of(seed=0)
    optimizer = adam(model)
    step(model, optimizer, seed=0)
    write_state(state_of(model, optimizer), tmp_path / "state")
    return tmp_path / "state"


def change(folder: Path, edit: Callable[[Metadata], Any]) -> None:
    """Replaces the metadata with what `edit` returns, or changed in place."""
    file = folder / METADATA_FILE
    metadata = pickle.loads(file.read_bytes())
    edited = edit(metadata)
    file.write_bytes(pickle.dumps(metadata if edited is None else edited))


def test_it_reads_what_torch_reads(saved: Path) -> None:
    found, expected = read_metadata(saved), pickle.loads((saved / METADATA_FILE).read_bytes())
    assert tensors_of(found) == tensors_of(expected)
    assert found.storage_data == expected.storage_data


def tensors_of(metadata: Metadata) -> dict[str, object]:
    """Returns what a tensor is read by; torch from 2.15 on also records strides, which reading does not need."""
    return {
        name: (one.properties.dtype, one.size, one.chunks) if isinstance(one, TensorStorageMetadata) else one
        for name, one in metadata.state_dict_metadata.items()
    }


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_reads_every_protocol_of_pickle_that_can_hold_a_dtype(saved: Path, protocol: int) -> None:
    file = saved / METADATA_FILE
    expected = read_metadata(saved)
    file.write_bytes(pickle.dumps(pickle.loads(file.read_bytes()), protocol=protocol))
    assert read_metadata(saved) == expected


@pytest.mark.parametrize("where", ["alone", "a tensor", "storage_meta", "planner_data", "a file's name"])
def test_a_checkpoint_whose_metadata_runs_a_command_is_refused_and_nothing_runs(
    saved: Path, tmp_path: Path, where: str
) -> None:
    bomb = Runs(tmp_path / "ran")

    def edit(metadata: Metadata) -> Any:
        if where == "alone":
            return bomb
        if where == "a tensor":
            metadata.state_dict_metadata["model.first.bias"] = bomb  # type: ignore[assignment]
        elif where == "a file's name":
            next(iter(metadata.storage_data.values())).relative_path = bomb
        else:
            setattr(metadata, where, bomb)
        return None

    change(saved, edit)
    with pytest.raises(CheckpointError, match=r"must hold names, shapes and places of tensors only, got posix.system"):
        read_state(saved, model_of(seed=1))
    assert not (tmp_path / "ran").exists()
    pickle.loads((saved / METADATA_FILE).read_bytes())  # the file would have run it
    assert (tmp_path / "ran").exists()


def test_an_entry_that_is_no_tensor_is_refused_because_torch_would_unpickle_it(saved: Path) -> None:
    change(saved, lambda one: one.state_dict_metadata.update({"model.first.bias": BytesStorageMetadata()}))
    with pytest.raises(CheckpointError, match="BytesStorageMetadata"):
        read_state(saved, model_of(seed=1))
    change_to_number = pickle.dumps(3)
    (saved / METADATA_FILE).write_bytes(change_to_number)
    with pytest.raises(CheckpointError, match="got an object of another kind than metadata"):
        read_metadata(saved)


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/__0_0.distcp", "..", ""])
def test_tensors_are_read_from_files_of_the_checkpoint_alone(saved: Path, name: str) -> None:
    def edit(metadata: Metadata) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = name

    change(saved, edit)
    with pytest.raises(CheckpointError, match="not in the checkpoint's folder"):
        read_metadata(saved)


def test_a_class_that_metadata_may_name_cannot_be_changed_by_it(saved: Path) -> None:
    """BUILD on a class sets attributes of the class, unless the class says otherwise."""
    attack = b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadata\nN}\x8c\x08__init__K\x01s\x86b."
    (saved / METADATA_FILE).write_bytes(attack)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_metadata(saved)
    assert callable(Metadata.__init__)
    assert Metadata.__init__ != 1


@given(st.binary(max_size=200))
def test_any_bytes_are_metadata_or_a_checkpoint_error(noise: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / METADATA_FILE).write_bytes(noise)
        with pytest.raises(CheckpointError):
            read_metadata(Path(folder))


def test_a_registered_extension_code_is_refused_like_a_name(saved: Path) -> None:
    copyreg.add_extension("posix", "system", 240)
    try:
        buffer = io.BytesIO()
        pickle.Pickler(buffer, protocol=4).dump(os.system)
        assert b"system" not in buffer.getvalue()
        (saved / METADATA_FILE).write_bytes(buffer.getvalue())
        with pytest.raises(CheckpointError, match=r"posix\.system"):
            read_metadata(saved)
    finally:
        copyreg.remove_extension("posix", "system", 240)


def test_a_file_of_tensors_that_runs_a_command_is_refused_too(saved: Path, tmp_path: Path) -> None:
    payload = io.BytesIO()
    torch.save(Runs(tmp_path / "ran"), payload)

    def edit(metadata: Metadata) -> None:
        for place in metadata.storage_data.values():
            place.offset, place.length = 0, len(payload.getvalue())

    change(saved, edit)
    (saved / "__0_0.distcp").write_bytes(payload.getvalue())
    with pytest.raises(CheckpointError, match="could not be read"):
        read_state(saved, model_of(seed=1))
    assert not (tmp_path / "ran").exists()


def test_what_one_process_wrote_still_loads(saved: Path) -> None:
    model, again = model_of(seed=0), model_of(seed=9)
    step(model, adam(model), seed=0)
    read_state(saved, again, adam(again))
    assert torch.equal(weights(again), weights(model))
