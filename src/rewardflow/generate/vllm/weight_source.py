"""Yields the trainer's weights as vLLM takes them, and carries them in files in memory.

Always true: names are those that transformers would save, which vLLM reads; each weight comes once, whole, in the
engine's dtype, and equals the trainer's at that moment; a file is deleted when its reader has read it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
from torch.distributed.tensor import DTensor

from rewardflow.generate.engines import NamedTensors
from rewardflow.generate.vllm.saved_form import SavedForm, SavedSize, saved_state

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

FILE_BACKEND = "rewardflow_file"  # the name of the worker's side in vLLM's registry
CHUNK_BYTES = 2**29

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class WeightMeta:
    """Describes a weight to vLLM's own senders before it is sent."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class ModelWeights:
    """Yields the present weights, each time it is iterated; what vLLM calls a `WeightSource`.

    `named` gives the weights of `model`, each whole and under its name there; without it they are the model's own. With
    it the model may be spread over ranks, held in another form, or an outline.
    """

    def __init__(
        self, model: PreTrainedModel, dtype: torch.dtype, named: Callable[[], NamedTensors] | None = None
    ) -> None:
        self._model = model
        self._named = named or self._own
        self._form = SavedForm(model, dtype)
        self._metadata: list[WeightMeta] | None = None

    @property
    def size(self) -> SavedSize:
        """The size of the weights as they are sent."""
        return self._form.size

    def metadata(self) -> list[WeightMeta]:
        """Lists the weights in the order of iteration. The first call iterates once to find out."""
        if self._metadata is None:
            self._metadata = [WeightMeta(name, one.dtype, tuple(one.shape)) for name, one in self]
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        self._form.begin()
        for name, weight in self._named():
            yield from self._form.put(name, weight)
        self._form.check_complete()

    def _own(self) -> NamedTensors:
        for name, tensor in saved_state(self._model).items():
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def chunks(weights: NamedTensors, max_bytes: int = CHUNK_BYTES) -> Iterator[dict[str, Tensor]]:
    """Groups as many weights as fit into a chunk; a weight that is larger comes alone."""
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
def in_memory_folder(num_bytes: int, *, num_writers: int = 1) -> Iterator[Path]:
    """Makes a folder for files of `num_bytes`, in memory if it has room, and deletes it afterwards.

    `num_writers` processes of this machine do so at the same time, so there must be room for the files of all.
    """
    place = _SHARED_MEMORY if _has_room(_SHARED_MEMORY, num_bytes * num_writers) else None
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
