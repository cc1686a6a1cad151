"""The trainer's weights as vLLM takes them, and files in memory to carry them.

Always true: names are those that transformers would save, which is what vLLM reads; each weight comes once, whole, in
the engine's dtype, and equals the trainer's at that moment; a file is gone when whoever was told of it has read it.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.core_model_loading import revert_weight_conversion

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE_BACKEND = "rewardflow_file"  # what the worker's side is called in vLLM's registry
CHUNK_BYTES = 2**30

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class WeightMeta:
    """What vLLM's own senders are told of a weight before it is sent."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class ModelWeights:
    """Can be gone through again and again, each time as the weights are then; what vLLM calls a `WeightSource`."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._model = model
        self._dtype = dtype

    @property
    def num_bytes(self) -> int:
        return sum(math.prod(one.shape) * one.dtype.itemsize for one in self.metadata())

    def metadata(self) -> list[WeightMeta]:
        return [WeightMeta(name, self._dtype_of(one), tuple(one.shape)) for name, one in self._named().items()]

    @torch.no_grad()
    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._named().items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            yield name, whole.detach().to(self._dtype_of(whole)).contiguous()

    def _named(self) -> Mapping[str, Tensor]:
        """Parameters and persistent buffers, each once: weights that are tied have one name."""
        once = {name for name, _ in (*self._model.named_parameters(), *self._model.named_buffers())}
        state = {name: tensor for name, tensor in self._model.state_dict().items() if name in once}
        converted: Mapping[str, Tensor] = revert_weight_conversion(self._model, state)
        return converted

    def _dtype_of(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype


def chunks(weights: Iterable[tuple[str, Tensor]], max_bytes: int = CHUNK_BYTES) -> Iterator[dict[str, Tensor]]:
    """Weights together, as many as fit; one that is larger comes alone."""
    chunk: dict[str, Tensor] = {}
    num_bytes = 0
    for name, tensor in weights:
        if chunk and num_bytes + tensor.nbytes > max_bytes:
            yield chunk
            chunk, num_bytes = {}, 0
        chunk[name] = tensor
        num_bytes += tensor.nbytes
    if chunk:
        yield chunk


@contextmanager
def in_memory_folder(num_bytes: int) -> Iterator[Path]:
    """A folder for files of so many bytes, in memory if there is room, and gone afterwards."""
    place = _SHARED_MEMORY if _has_room(_SHARED_MEMORY, num_bytes) else None
    with tempfile.TemporaryDirectory(prefix="rewardflow-weights-", dir=place) as folder:
        yield Path(folder)


def write_chunk(chunk: Mapping[str, Tensor], path: Path) -> None:
    safetensors.torch.save_file({name: tensor.cpu() for name, tensor in chunk.items()}, path)


def read_chunk(path: str) -> Iterator[tuple[str, Tensor]]:
    with safetensors.safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  it is no mapping
            yield name, file.get_tensor(name)


def _has_room(folder: Path, num_bytes: int) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free > num_bytes + num_bytes // 8
