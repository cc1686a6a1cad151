"""Receives weights inside vLLM's workers, from files in shared memory.

Always true: weights go in through vLLM's layerwise reload, which packs, fuses and shards them as at the start; the
model has them when an update is finished, and not in between.

vLLM imports this module by name (`worker_extension_cls`), in its own processes, before it loads a model. The import
registers the file engine with vLLM, and makes the process end with its owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rewardflow.generate.vllm.lifeline import end_with_owner
from rewardflow.generate.vllm.weight_source import FILE_BACKEND, read_chunk


class WorkerExtension:
    """vLLM mixes it into its worker, and can call its methods on every worker."""

    if TYPE_CHECKING:
        reload_weights: Any  # the worker's own

    def reload_from_files(self, paths: Sequence[str]) -> None:
        self.reload_weights(weights_iterator=chain.from_iterable(map(read_chunk, paths)))


@dataclass
class FileInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM's types are not known here
    """Is empty: files need no agreement between the two sides."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Names a file in this machine's memory with a chunk of weights."""

    path: str


class FileEngine(WeightTransferEngine):  # type: ignore[misc]
    """Receives chunks of weights as files."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Does what vLLM's own method does, which on a CPU cannot wait for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        with disable_mtp_completeness_check():  # a chunk is a part
            self.model.load_weights(read_chunk(update_info.path))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


WeightTransferEngineFactory.register_engine(FILE_BACKEND, FileEngine)
end_with_owner()
