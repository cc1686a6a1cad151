"""How new weights reach vLLM's workers: its own senders, ours through shared memory, or its `reload_weights`.

Always true: a sender runs on the trainer's thread and speaks with the engine through the loop, which is free meanwhile;
the engine has the new version's number when `send_weights` returns, and not before it has all of its weights.

vLLM's plain `model.load_weights` is used nowhere by itself: without the layerwise reload round it, an engine on a CPU
is left with weights that are half packed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.config.tree import VllmSettings, WeightTransfer
from rewardflow.generate.vllm.weights import (
    CHUNK_BYTES,
    FILE_BACKEND,
    ModelWeights,
    chunks,
    in_memory_folder,
    write_chunk,
)

_BACKENDS: dict[WeightTransfer, str | None] = {
    "shared_memory": FILE_BACKEND,
    "ipc": "ipc",
    "nccl": "nccl",
    "reload": None,
}


def backend_of(transfer: WeightTransfer) -> str | None:
    """The name of the worker's side in vLLM's registry; None if it needs none."""
    return _BACKENDS[transfer]


class BlockingClient:
    """vLLM's engine for whoever stands on another thread than its loop; what vLLM calls a `VLLMWeightSyncClient`.

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
        """vLLM's own senders name no version."""
        self._wait_for(self._llm.finish_weight_update(weight_version or str(self.version)))

    def reload_from_files(self, paths: list[str]) -> None:
        self._wait_for(self._llm.collective_rpc("reload_from_files", args=(paths,)))
        self._wait_for(self._llm.update_weight_version(str(self.version)))

    def _wait_for(self, call: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()


@dataclass(frozen=True, slots=True)
class WeightSender:
    """`send_weights` gives the engine the trainer's present weights, under the client's version."""

    send_weights: Callable[[], None]
    shutdown: Callable[[], None]


def open_sender(settings: VllmSettings, client: BlockingClient, weights: ModelWeights) -> WeightSender:
    """After the engine's start; the two sides find each other here."""
    if settings.transfer == "reload":
        return WeightSender(lambda: _reload(client, weights), _nothing)
    if settings.transfer == "shared_memory":
        client.init_weight_transfer_engine({})
        return WeightSender(lambda: _send_files(client, weights), _nothing)
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    own = WeightTransferTrainerFactory.trainer_init(_init_info(settings), client=client, source=weights)
    return WeightSender(own.send_weights, own.shutdown)


def _init_info(settings: VllmSettings) -> Any:
    if settings.transfer == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0, packed=True)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    from vllm.utils.network_utils import get_open_port

    return NCCLTrainerInitInfo(
        rank=0, master_address="127.0.0.1", master_port=get_open_port(), world_size=1 + settings.tensor_parallel
    )


def _send_files(client: BlockingClient, weights: ModelWeights) -> None:
    """Chunk after chunk, so that only one is in memory twice."""
    client.start_weight_update()
    with in_memory_folder(CHUNK_BYTES) as folder:
        for number, chunk in enumerate(chunks(weights)):
            path = folder / f"{number}.safetensors"
            write_chunk(chunk, path)
            client.update_weights({"path": str(path)})
            path.unlink()
    client.finish_weight_update()


def _reload(client: BlockingClient, weights: ModelWeights) -> None:
    """All of them at once, as `reload_weights` wants them."""
    with in_memory_folder(weights.num_bytes) as folder:
        paths = []
        for number, chunk in enumerate(chunks(weights)):
            paths.append(str(folder / f"{number}.safetensors"))
            write_chunk(chunk, Path(paths[-1]))
        client.reload_from_files(paths)


def _nothing() -> None:
    pass
