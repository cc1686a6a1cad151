"""Sends new weights to vLLM's workers: by vLLM's own senders, through shared memory, or by its `reload_weights`.

Always true: a sender runs on the thread that holds the weights and calls the engine through the loop, which is free
meanwhile; the engine has the new version's number when `send_weights` returns, and not before it has all weights. The
next piece is gathered while the engine reads the last one. Weights are read after the last update has ended, and have
been read when the next one begins, also where they are read on another stream.

No sender uses vLLM's plain `model.load_weights` by itself: without the layerwise reload around it, an engine on a CPU
is left with weights that are half packed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rewardflow.errors import FlowError
from rewardflow.generate.vllm.saved_form import SavedForm, SavedSize
from rewardflow.generate.vllm.weight_source import (
    CHUNK_BYTES,
    FILE_BACKEND,
    ModelWeights,
    chunks,
    in_memory_folder,
    write_chunk,
)
from rewardflow.policy.accelerator import wait_for_device
from rewardflow.settings.run_settings import VllmSettings, WeightTransfer

if TYPE_CHECKING:
    from torch import Tensor

Put = Callable[[Mapping[str, "Tensor"]], None]

_FILES_AT_ONCE = 2  # one that the engine reads, and the next
_PACKED_BYTES = 2**30

_BACKENDS: dict[WeightTransfer, str | None] = {
    "shared_memory": FILE_BACKEND,
    "ipc": "ipc",
    "nccl": "nccl",
    "reload": None,
}


def backend_of(transfer: WeightTransfer) -> str | None:
    """Returns the name of the worker's side in vLLM's registry; None if it needs none."""
    return _BACKENDS[transfer]


class BlockingClient:
    """Calls vLLM's engine from another thread than its loop's; what vLLM calls a `VLLMWeightSyncClient`.

    `version` is that of the weights that are sent next.
    """

    def __init__(self, llm: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.version = 0
        self._llm = llm
        self._loop = loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._wait_for(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info)))

    def start_weight_update(self) -> None:
        self._wait_for(self._llm.start_weight_update())

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self.begin_update(update_info)()

    def begin_update(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> Callable[[], None]:
        """Lets the engine read a piece meanwhile; call what is returned to wait until it has."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        return self._begin(self._llm.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Uses the client's version if the caller, such as vLLM's own senders, names none."""
        self._wait_for(self._llm.finish_weight_update(weight_version or str(self.version)))

    def reload_from_files(self, paths: list[str]) -> None:
        self._wait_for(self._llm.collective_rpc("reload_from_files", args=(paths,)))
        self._wait_for(self._llm.update_weight_version(str(self.version)))

    def _begin(self, call: Coroutine[Any, Any, Any]) -> Callable[[], None]:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        return lambda: future.result()  # raises what the engine raised

    def _wait_for(self, call: Coroutine[Any, Any, Any]) -> None:
        self._begin(call)()


class WeightSender(Protocol):
    def send_weights(self) -> None:
        """Gives the engine a new version, under the client's number."""

    def shutdown(self) -> None: ...


class PulledWeights:
    """Sends the weights of a trainer in this process, as they are at that moment."""

    def __init__(
        self, settings: VllmSettings, client: BlockingClient, weights: ModelWeights, *, num_writers: int = 1
    ) -> None:
        self._begin = functools.partial(_update, settings.transfer, client, weights.size, num_writers)
        self._weights = weights
        _introduce(settings, client)

    def send_weights(self) -> None:
        with self._begin() as put:
            for chunk in chunks(self._weights):
                put(chunk)

    def shutdown(self) -> None:
        pass


class PushedWeights:
    """Sends the weights of a trainer in another process, which `put` gives piece by piece, in any order."""

    def __init__(
        self, settings: VllmSettings, client: BlockingClient, form: SavedForm, *, num_writers: int = 1
    ) -> None:
        self._begin = functools.partial(_update, settings.transfer, client, form.size, num_writers)
        self._form = form
        self._under_way: ExitStack | None = None
        self._put: Put | None = None
        _introduce(settings, client)

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    def put(self, piece: Mapping[str, Tensor]) -> None:
        """Passes a piece on, by the names that the model has. The first piece begins an update."""
        if self._under_way is None:
            self._under_way = ExitStack()
            self._put = self._under_way.enter_context(self._begin())
            self._form.begin()
        saved = {name: one for given, weight in piece.items() for name, one in self._form.put(given, weight)}
        assert self._put is not None
        if saved:
            self._put(saved)

    def send_weights(self) -> None:
        """Ends the update."""
        if self._under_way is None:
            raise FlowError("vLLM must be given weights before they are a version, got none")
        self._form.check_complete()
        under_way, self._under_way = self._under_way, None
        under_way.close()

    def shutdown(self) -> None:
        """Throws away an update that was not ended."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.__exit__(FlowError, FlowError("the update was not ended"), None)


class DirectWeights:
    """Prepares vLLM's workers for a trainer in another process, which sends to them itself, from GPU to GPU."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def answer(self, call: str, info: dict[str, Any]) -> None:
        if call == "meet":
            self._client.init_weight_transfer_engine(info)
        elif call == "start":
            self._client.start_weight_update()
        else:
            self._client.update_weights(info)

    def send_weights(self) -> None:
        self._client.finish_weight_update()

    def shutdown(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Synchronized:
    """Sends by a sender that reads weights on streams of its own: after the last update, and before the next."""

    sender: WeightSender

    def send_weights(self) -> None:
        wait_for_device()
        self.sender.send_weights()
        wait_for_device()

    def shutdown(self) -> None:
        self.sender.shutdown()


def open_sender(
    settings: VllmSettings, client: BlockingClient, weights: ModelWeights, *, num_writers: int = 1
) -> WeightSender:
    """Connects the trainer with vLLM's workers, after the engine's start.

    `num_writers` senders share this machine's memory.
    """
    if settings.transfer in ("reload", "shared_memory"):
        return PulledWeights(settings, client, weights, num_writers=num_writers)
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    info = _init_info(settings, weights)
    return Synchronized(WeightTransferTrainerFactory.trainer_init(info, client=client, source=weights))


def open_receiver(
    settings: VllmSettings, client: BlockingClient, form: SavedForm, *, num_writers: int = 1
) -> PushedWeights | DirectWeights:
    """Does the same for weights that come from another process."""
    if settings.transfer == "nccl":
        return DirectWeights(client)
    return PushedWeights(settings, client, form, num_writers=num_writers)


def packed_buffer_bytes(size: SavedSize) -> int:
    """Returns the size of a buffer that holds any weight: vLLM puts each into one buffer, and the default is 1 GiB."""
    return max(_PACKED_BYTES, size.largest_bytes)


def device_buffer_bytes(transfer: WeightTransfer, size: SavedSize) -> int:
    """Returns what a trainer holds on the device that it shares with the engine, beside the weight that it gathers.

    vLLM's NCCL sender is for engines on other devices.
    """
    if transfer == "nccl":
        return 0
    return packed_buffer_bytes(size) if transfer == "ipc" else min(CHUNK_BYTES, size.num_bytes)


def _init_info(settings: VllmSettings, weights: ModelWeights) -> Any:
    if settings.transfer == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=packed_buffer_bytes(weights.size))
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    from vllm.utils.network_utils import get_open_port

    return NCCLTrainerInitInfo(
        rank=0, master_address="127.0.0.1", master_port=get_open_port(), world_size=1 + settings.tensor_parallel
    )


def _introduce(settings: VllmSettings, client: BlockingClient) -> None:
    """Calls vLLM's init even where weights go through files and nothing is to be agreed: vLLM requires it."""
    if settings.transfer == "shared_memory":
        client.init_weight_transfer_engine({})


@contextmanager
def _update(transfer: WeightTransfer, client: BlockingClient, size: SavedSize, num_writers: int) -> Iterator[Put]:
    """Yields a function that puts a piece. The engine has all pieces when the block ends."""
    piece_bytes = max(CHUNK_BYTES, size.largest_bytes)
    needed = size.num_bytes if transfer == "reload" else _FILES_AT_ONCE * piece_bytes
    with in_memory_folder(needed, num_writers=num_writers) as folder:
        if transfer == "reload":
            paths: list[str] = []
            yield lambda piece: paths.append(_written(piece, folder / f"{len(paths)}.safetensors"))
            client.reload_from_files(paths)  # which wants them all at once
        else:
            client.start_weight_update()
            handed = _HandOver(client, folder)
            yield handed.put
            handed.wait()
            client.finish_weight_update()


class _HandOver:
    """Hands over pieces: the engine reads one while the next is written, so two are in memory."""

    def __init__(self, client: BlockingClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._numbers = itertools.count()
        self._wait: Callable[[], None] = lambda: None
        self._path: Path | None = None

    def put(self, piece: Mapping[str, Tensor]) -> None:
        path = self._folder / f"{next(self._numbers)}.safetensors"
        written = _written(piece, path)
        self.wait()
        self._wait, self._path = self._client.begin_update({"path": written}), path

    def wait(self) -> None:
        """Returns when the engine has read the last piece, which is deleted."""
        self._wait()
        if self._path is not None:
            self._path.unlink()
        self._wait, self._path = lambda: None, None


def _written(piece: Mapping[str, Tensor], path: Path) -> str:
    write_chunk(piece, path)
    return str(path)
