"""Sends new weights to vLLM's workers: by vLLM's own senders, through shared memory, or by its `reload_weights`.

Always true: a sender runs on the thread that holds the weights and calls the engine through the loop, which is free
meanwhile; the engine has the new version's number when `send_weights` returns, and not before it has all weights.

No sender uses vLLM's plain `model.load_weights` by itself: without the layerwise reload around it, an engine on a CPU
is left with weights that are half packed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rewardflow.errors import FlowError
from rewardflow.generate.vllm.saved_form import SavedForm
from rewardflow.generate.vllm.weight_source import (
    CHUNK_BYTES,
    FILE_BACKEND,
    ModelWeights,
    chunks,
    in_memory_folder,
    write_chunk,
)
from rewardflow.settings.run_settings import VllmSettings, WeightTransfer

if TYPE_CHECKING:
    from torch import Tensor

Put = Callable[[Mapping[str, "Tensor"]], None]

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
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self._wait_for(self._llm.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Uses the client's version if the caller, such as vLLM's own senders, names none."""
        self._wait_for(self._llm.finish_weight_update(weight_version or str(self.version)))

    def reload_from_files(self, paths: list[str]) -> None:
        self._wait_for(self._llm.collective_rpc("reload_from_files", args=(paths,)))
        self._wait_for(self._llm.update_weight_version(str(self.version)))

    def _wait_for(self, call: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()


class WeightSender(Protocol):
    def send_weights(self) -> None:
        """Gives the engine a new version, under the client's number."""

    def shutdown(self) -> None: ...


class PulledWeights:
    """Sends the weights of a trainer in this process, as they are at that moment."""

    def __init__(self, settings: VllmSettings, client: BlockingClient, weights: ModelWeights) -> None:
        self._settings = settings
        self._client = client
        self._weights = weights
        _introduce(settings, client)

    def send_weights(self) -> None:
        with _update(self._settings.transfer, self._client, self._weights.num_bytes) as put:
            for chunk in chunks(self._weights):
                put(chunk)

    def shutdown(self) -> None:
        pass


class PushedWeights:
    """Sends the weights of a trainer in another process, which `put` gives piece by piece, in any order."""

    def __init__(self, settings: VllmSettings, client: BlockingClient, form: SavedForm) -> None:
        self._begin = functools.partial(_update, settings.transfer, client, form.num_bytes)
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


def open_sender(settings: VllmSettings, client: BlockingClient, weights: ModelWeights) -> WeightSender:
    """Connects the trainer with vLLM's workers, after the engine's start."""
    if settings.transfer in ("reload", "shared_memory"):
        return PulledWeights(settings, client, weights)
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    own: WeightSender = WeightTransferTrainerFactory.trainer_init(_init_info(settings), client=client, source=weights)
    return own


def open_receiver(settings: VllmSettings, client: BlockingClient, form: SavedForm) -> PushedWeights | DirectWeights:
    """Does the same for weights that come from another process."""
    return DirectWeights(client) if settings.transfer == "nccl" else PushedWeights(settings, client, form)


def _init_info(settings: VllmSettings) -> Any:
    if settings.transfer == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0, packed=True)
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
def _update(transfer: WeightTransfer, client: BlockingClient, num_bytes: int) -> Iterator[Put]:
    """Yields a function that puts a piece. The engine has all pieces, of `num_bytes` together, when the block ends."""
    with in_memory_folder(num_bytes if transfer == "reload" else CHUNK_BYTES) as folder:
        if transfer == "reload":
            paths: list[str] = []
            yield lambda piece: paths.append(_written(piece, folder / f"{len(paths)}.safetensors"))
            client.reload_from_files(paths)  # which wants them all at once
        else:
            client.start_weight_update()
            yield lambda piece: _hand_over(client, piece, folder / "piece.safetensors")
            client.finish_weight_update()


def _hand_over(client: BlockingClient, piece: Mapping[str, Tensor], path: Path) -> None:
    """Deletes each piece before the next is written, so that only one is in memory twice."""
    client.update_weights({"path": _written(piece, path)})
    path.unlink()


def _written(piece: Mapping[str, Tensor], path: Path) -> str:
    write_chunk(piece, path)
    return str(path)
