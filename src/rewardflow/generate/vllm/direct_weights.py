"""Sends weights from the first rank's GPU straight to vLLM's workers, on any node: `vllm.transfer: nccl`.

Always true: every rank helps to gather each weight, and the first sends it; each worker of each engine has its own rank
in the group of the transfer. The received weights become a version when the engines are given its number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rewardflow.generate.engines import AskEngines, DirectSender, EngineActors, NamedTensors
from rewardflow.settings.run_settings import RunSettings


@dataclass(frozen=True, slots=True)
class RemoteEngineClient:
    """The engines' actors for a thread that may block; what vLLM calls a `VLLMWeightSyncClient`."""

    ask_all: AskEngines
    num_engines: int
    workers_each: int

    @property
    def world_size(self) -> int:
        """Counts all workers and the rank that sends."""
        return 1 + self.num_engines * self.workers_each

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        first = init_info["rank_offset"]
        offsets = [first + number * self.workers_each for number in range(self.num_engines)]
        self.ask_all("meet", [{**init_info, "rank_offset": offset} for offset in offsets])

    def start_weight_update(self) -> None:
        self.ask_all("start", [{}] * self.num_engines)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.ask_all("update", [update_info] * self.num_engines)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Does nothing: publishing gives the engines the version, which ends the update."""


def open_direct_sender(
    settings: RunSettings, weights: Callable[[], NamedTensors], *, rank: int, engines: EngineActors
) -> DirectSender:
    """Opens vLLM's own NCCL sender on every rank; on the first one it returns when all workers have joined."""
    import torch
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    from vllm.utils.network_utils import get_open_port

    from rewardflow.generate.vllm.senders import Synchronized
    from rewardflow.generate.vllm.weight_source import ModelWeights
    from rewardflow.policy.load_policy import outline_policy

    client = RemoteEngineClient(engines.ask_all, engines.count, settings.vllm.tensor_parallel)
    info = NCCLTrainerInitInfo(
        rank=rank, master_address=engines.address, master_port=get_open_port(), world_size=client.world_size
    )
    source = ModelWeights(outline_policy(settings.policy).model, getattr(torch, settings.engine_dtype), weights)
    return Synchronized(WeightTransferTrainerFactory.trainer_init(info, client=client, source=source))
