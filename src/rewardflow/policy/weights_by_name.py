"""Gives the weights of a model by their names in transformers, whole or some of their rows.

Always true: a weight is read when it is asked for, and of a folder no more than the rows that are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rewardflow.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor, nn

ALL_ROWS = slice(None)

_ONE_FILE, _INDEX_FILE = "model.safetensors", "model.safetensors.index.json"  # of transformers, in its order


class WeightSource(Protocol):
    """Returns a weight, or the entries of `rows` along its first axis."""

    def __call__(self, name: str, rows: slice = ALL_ROWS, /) -> Tensor: ...


def weights_of(model: nn.Module) -> WeightSource:
    """Returns the weights of a loaded model of transformers."""
    return named(model.state_dict())


def named(weights: Mapping[str, Tensor]) -> WeightSource:
    def weight(name: str, rows: slice = ALL_ROWS, /) -> Tensor:
        if name not in weights:
            raise InvalidInput(f"the model to train must have the weight {name}, got none of that name")
        return weights[name] if rows == ALL_ROWS else weights[name][rows]

    return weight


def files_of_weights(folder: Path) -> Mapping[str, Path]:
    """Returns the name of every weight in a folder with safetensors, with its file.

    Reads the files that transformers would: `model.safetensors`, or those that the index names. Others, such as shards
    of an earlier save or averaged weights, may have weights of the same names. Without either, all files are read.
    """
    from safetensors import safe_open

    files: dict[str, Path] = {}
    for path in _files(folder):
        with safe_open(path, "pt") as file:
            files |= dict.fromkeys(file.keys(), path)
    return files


def _files(folder: Path) -> Iterable[Path]:
    one, index = folder / _ONE_FILE, folder / _INDEX_FILE
    if one.is_file():
        return [one]
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        named = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{index} must be an index as save_pretrained writes it, got {error!r}") from error
    missing = sorted(name for name in named if not (folder / name).is_file())
    if missing:
        raise InvalidInput(f"every file that {index} names must be there, got no {', '.join(missing[:3])}")
    return sorted(folder / name for name in named)


def shapes_in(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of every weight in a folder with safetensors, without reading any."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(set(files_of_weights(folder).values())):
        with safe_open(path, "pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  no mapping
    return shapes


def weights_in(folder: Path) -> WeightSource:
    """Returns the weights of a folder with safetensors."""
    from safetensors import safe_open

    files = files_of_weights(folder)
    if not files:
        raise InvalidInput(f"a folder to read weights from must have files of safetensors, got {folder}")

    def weight(name: str, rows: slice = ALL_ROWS, /) -> Tensor:
        if name not in files:
            raise InvalidInput(f"the model to train must have the weight {name}, got none in {folder}")
        with safe_open(files[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name) if rows == ALL_ROWS else file.get_slice(name)[rows]
        return tensor

    return weight


def under(prefix: str, source: WeightSource) -> WeightSource:
    """Returns the weights of a part of a model, whose names there begin with `prefix`."""
    return lambda name, rows=ALL_ROWS, /: source(prefix + name, rows)
