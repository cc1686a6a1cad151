"""Writes and reads weights and optimizer state, through torch.distributed.checkpoint.

Always true: reading gives what was written, bit for bit, whatever the number of ranks then and now; saving changes
nothing. Reading runs no code that a checkpoint names (`state_metadata.py`). The names are the model's own, so an error
about a checkpoint of another model names the weights and shapes that differ.

The state is assembled here and not by torch's `get_optimizer_state_dict`, which lets an optimizer that has not stepped
yet step once to learn what its state looks like: a run that was saved would differ from one that was not.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rewardflow.checkpoint.state_metadata import StateReader
from rewardflow.errors import CheckpointError, InvalidInput
from rewardflow.observe.private_file import create
from rewardflow.policy.adapters import is_adapter

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.optim import Optimizer

State = Mapping[str, Tensor]

_MODEL, _OPTIMIZER = "model.", "optimizer."
_MAX_TOLD = 5


def state_of(model: nn.Module, optimizer: Optimizer, *, owner: str = "") -> State:
    """Returns the tensors themselves by name; each rank has its shards. `owner` tells several models apart."""
    names = _names(model)
    state = {f"{owner}{_MODEL}{name}": tensor for name, tensor in _weights(model).items()}
    for weight, remembered in optimizer.state.items():
        state |= {f"{owner}{_OPTIMIZER}{names[weight]}.{field}": value for field, value in remembered.items()}
    return state


def copied(state: State) -> State:
    """Copies the state to host memory, so that training may continue while it is written."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def write_state(state: State, folder: Path, *, group: dist.ProcessGroup | None = None) -> None:
    """Writes the state; all ranks call it together. Raises `CheckpointError` if the disk fails."""
    with _explained(f"{folder} could not be written"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writer = FileSystemWriter(folder)
        writer.fs = _PrivateFiles()
        save(dict(state), storage_writer=writer, process_group=group, no_dist=not dist.is_initialized())


class _PrivateFiles(FileSystem):
    """torch's way to files, except that new ones are private: torch would let the umask decide who may read them."""

    @contextmanager
    def create_stream(self, path: str | PathLike[str], mode: str) -> Iterator[Any]:
        if mode != "wb":
            raise CheckpointError(f"a state's files are only written, got the mode {mode!r} for {path}")
        with create(Path(path)) as stream:  # torch syncs it, and may close it
            yield stream


class SavedState:
    """The names and shapes that `write_state` wrote into a folder; `fill` reads the tensors."""

    def __init__(self, folder: Path, *, owner: str = "", group: dist.ProcessGroup | None = None) -> None:
        self._folder = folder
        self._owner = owner
        self._group = group
        with _explained(f"{folder} could not be read"):
            self._reader = StateReader(folder)
            self.entries = {
                name.removeprefix(owner): cast("TensorStorageMetadata", entry)
                for name, entry in self._reader.read_metadata().state_dict_metadata.items()
                if name.startswith((owner + _MODEL, owner + _OPTIMIZER))
            }

    @property
    def names(self) -> Collection[str]:
        return self.entries.keys()

    def check_model(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises `InvalidInput` if the state is not of a model with weights of these names and shapes."""
        then = {name: tuple(entry.size) for name, entry in self.entries.items() if name.startswith(_MODEL)}
        now = {_MODEL + name: shape for name, shape in shapes.items()}
        odd = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if odd:
            told = [
                f"{name.removeprefix(_MODEL)} was {then.get(name)} and is {now.get(name)}" for name in odd[:_MAX_TOLD]
            ]
            more = f", and {len(odd) - _MAX_TOLD} others" if len(odd) > _MAX_TOLD else ""
            raise InvalidInput(f"a checkpoint must be of the same model, but in {self._folder} {', '.join(told)}{more}")

    def fill(self, wanted: State) -> None:
        """Reads into the given tensors, in place. All ranks call it together, each with its parts."""
        named = {self._owner + name: tensor for name, tensor in wanted.items()}
        with _explained(f"{self._folder} could not be read"):
            load(named, storage_reader=self._reader, process_group=self._group, no_dist=not dist.is_initialized())


def read_state(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    owner: str = "",
    group: dist.ProcessGroup | None = None,
) -> None:
    """Reads into the model, and into the optimizer if given. All ranks call it together."""
    saved = SavedState(folder, owner=owner, group=group)
    weights = _weights(model)
    saved.check_model({name: tuple(tensor.shape) for name, tensor in weights.items()})
    wanted = {_MODEL + name: tensor for name, tensor in weights.items()}
    places = {} if optimizer is None else _optimizer_places(saved.entries, model)
    for weight, remembered in places.items():
        wanted |= {f"{_OPTIMIZER}{_names(model)[weight]}.{field}": value for field, value in remembered.items()}
    saved.fill(wanted)
    if optimizer is not None:
        give_state(optimizer, places)


def give_state(optimizer: Optimizer, remembered: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
    """Replaces what an optimizer remembers of its weights.

    torch puts each tensor where its update reads it: a fused update reads its counters on the device of the weights.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbered = {number: dict(remembered[weight]) for number, weight in enumerate(weights) if weight in remembered}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": numbered})


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns parameters and persistent buffers, each once: tied weights have one name. Of a model with adapters those
    alone, because nothing else of it changes."""
    once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    weights = {name: tensor for name, tensor in model.state_dict().items() if name in once}
    return {name: tensor for name, tensor in weights.items() if is_adapter(name)} or weights


def _names(model: nn.Module) -> dict[Tensor, str]:
    return {weight: name for name, weight in model.named_parameters()}


def _optimizer_places(saved: Mapping[str, TensorStorageMetadata], model: nn.Module) -> dict[Tensor, dict[str, Tensor]]:
    """Allocates the optimizer's state of each weight, sharded like the weight if it has its shape."""
    weights = dict(model.named_parameters())
    places: dict[Tensor, dict[str, Tensor]] = {}
    for name, entry in saved.items():
        if name.startswith(_OPTIMIZER):
            owner, _, field = name.removeprefix(_OPTIMIZER).rpartition(".")
            weight, dtype = weights[owner], entry.properties.dtype
            is_like_weight = entry.size == weight.shape and entry.size != torch.Size(())
            room = (
                torch.zeros_like(weight.detach(), dtype=dtype)
                if is_like_weight
                else torch.zeros(entry.size, dtype=dtype)
            )
            places.setdefault(weight, {})[field] = room
    return places


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns torch's `CheckpointException`, and errors of the disk, into `CheckpointError`; hides a warning."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            yield
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"{what}: {type(cause).__name__}: {str(cause).partition(chr(10))[0]}") from cause
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{what}: {error}") from error
