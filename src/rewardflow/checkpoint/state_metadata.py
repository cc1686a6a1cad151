"""Reads the `.metadata` file of torch.distributed.checkpoint without running what the file says.

torch writes this file as a pickle and reads it with `pickle.load`, which runs any code that a crafted file names. The
reader here builds inert records in place of torch's classes, checks every field, and makes the `Metadata` itself.

Always true: reading calls nothing that the file names; every entry describes a tensor, so torch unpickles no other
object; every entry is stored in a file of the same folder. Anything else is a `CheckpointError`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from rewardflow.errors import CheckpointError

METADATA_FILE = ".metadata"
_UNPICKLING_ERRORS = (
    *(pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError),
    *(OverflowError, MemoryError),
)


class StateReader(FileSystemReader):
    """torch's reader of a folder of tensors, with a safe way to read the metadata."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_metadata(Path(self.path))
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


def read_metadata(folder: Path) -> Metadata:
    """Returns what the folder's metadata file says; raises `CheckpointError` if it holds anything but tensors."""
    path = folder / METADATA_FILE
    try:
        record = _InertUnpickler(io.BytesIO(path.read_bytes())).load()
        return _metadata(record)
    except _Refused as refused:
        raise CheckpointError(
            f"{path} must hold names, shapes and places of tensors only, got {refused}; nothing of it was run. "
            "The checkpoint is damaged, or rewardflow did not write it"
        ) from None
    except _UNPICKLING_ERRORS as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


class _Refused(Exception):
    """The file holds something that no metadata of tensors has."""


# -- reading the pickle --


class _Inert:
    """Stands for an object of a class that the file names: holds its arguments and fields, and does nothing."""

    arguments: tuple[object, ...] = ()
    fields: object = None

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, fields: object) -> None:
        self.fields = fields


class _Metadata(_Inert): ...


class _Tensor(_Inert): ...


class _Properties(_Inert): ...


class _Chunk(_Inert): ...


class _Index(_Inert): ...


class _Place(_Inert): ...


class _Unused(_Inert):
    """Something that torch writes and nothing here needs."""


_METADATA, _FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_KNOWN: Mapping[tuple[str, str], type] = {
    (_METADATA, "Metadata"): _Metadata,
    (_METADATA, "TensorStorageMetadata"): _Tensor,
    (_METADATA, "TensorProperties"): _Properties,
    (_METADATA, "ChunkStorageMetadata"): _Chunk,
    (_METADATA, "MetadataIndex"): _Index,
    (_METADATA, "StorageMeta"): _Unused,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _Unused,
    (_FILES, "_StorageInfo"): _Place,
    ("torch.serialization", "_get_layout"): _Unused,
    ("torch", "Size"): torch.Size,  # makes a tuple of whole numbers
    ("pathlib", "PosixPath"): _Unused,
    ("pathlib", "WindowsPath"): _Unused,
    ("pathlib._local", "PosixPath"): _Unused,  # its name in Python 3.13
    ("pathlib._local", "WindowsPath"): _Unused,
}


class _InertUnpickler(pickle.Unpickler):
    """Reads a pickle with inert classes in place of those that it names, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is not None:
            return known
        found = getattr(torch, name, None) if module == "torch" and "." not in name else None
        if isinstance(found, torch.dtype):
            return found
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a reference to another file")


# -- checking, and making torch's own records --


def _metadata(record: object) -> Metadata:
    fields = _fields(record, _Metadata)
    tensors, places = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(tensors, dict) or not isinstance(places, dict):
        raise _Refused("metadata without tensors or without their places")
    return Metadata(
        state_dict_metadata={_text(name): _tensor(one) for name, one in tensors.items()},
        storage_data={_index(index): _place(place) for index, place in places.items()},
    )


def _tensor(record: object) -> TensorStorageMetadata:
    fields = _fields(record, _Tensor)
    properties = fields.get("properties")
    state = properties.fields if isinstance(properties, _Properties) else None
    if not isinstance(state, tuple) or not state or not isinstance(state[0], torch.dtype):
        raise _Refused("a tensor without a dtype")
    chunks = fields.get("chunks")
    if not isinstance(chunks, list):
        raise _Refused("a tensor without a list of chunks")
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=state[0]),
        size=_size(fields.get("size")),
        chunks=[_chunk(chunk) for chunk in chunks],
    )


def _chunk(record: object) -> ChunkStorageMetadata:
    fields = _fields(record, _Chunk)
    return ChunkStorageMetadata(offsets=_size(fields.get("offsets")), sizes=_size(fields.get("sizes")))


def _index(record: object) -> MetadataIndex:
    fields = _fields(record, _Index)
    offset, index = fields.get("offset"), fields.get("index")
    return MetadataIndex(
        _text(fields.get("fqn")),
        None if offset is None else _size(offset),
        None if index is None else _count(index),
    )


def _place(record: object) -> _StorageInfo:
    fields = _fields(record, _Place)
    name = _text(fields.get("relative_path"))
    if name in ("", ".", "..") or name != Path(name).name:
        raise _Refused(f"the file {name!r:.80}, which is not in the checkpoint's folder")
    if fields.get("transform_descriptors"):
        raise _Refused("data that must be transformed")
    return _StorageInfo(name, _count(fields.get("offset")), _count(fields.get("length")))


def _fields(record: object, kind: type[_Inert]) -> dict[str, object]:
    if not isinstance(record, kind) or not isinstance(record.fields, dict):
        raise _Refused(f"an object of another kind than {kind.__name__.strip('_').lower()}")
    return record.fields


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Refused("a name that is not text")
    return value


def _size(value: object) -> torch.Size:
    if not isinstance(value, torch.Size) or not all(_is_count(one) for one in value):
        raise _Refused("a shape that is not made of whole numbers")
    return value


def _count(value: object) -> int:
    if not _is_count(value):
        raise _Refused("a place that is not a whole number")
    return value


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
