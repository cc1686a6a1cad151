"""Weights from the first rank's GPU straight into those of vLLM's workers, on whatever node: `vllm.transfer: nccl`.

Always true: every rank helps to gather each weight, and the first sends it; each worker of each engine has a place of
its own in the group that it is sent through. What they have received is a version when the engines are told its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from rewardflow.generate.vllm.senders import DirectCall, WeightSender
    from rewardflow.generate.vllm.weight_source import NamedTensors


# Asks every engine, each with its own information, and returns when all have done it.
AskAll = Callable[["DirectCall", Sequence[dict[str, Any]]], None]


@dataclass(frozen=True, slots=True)
class EnginesFromAfar:
    """The engines' actors for a thread that may block; what vLLM calls a `VLLMWeightSyncClient`."""

    ask_all: AskAll
    num_engines: int
    workers_each: int

    @property
    def world_size(self) -> int:
        """With the one that sends."""
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
        """Nothing: whoever publishes tells the engines the version, which ends the update."""


def _asking(engines: Sequence[Any]) -> AskAll:
    def ask_all(call: DirectCall, infos: Sequence[dict[str, Any]]) -> None:
        import ray

        ray.get([engine.direct.remote(call, info) for engine, info in zip(engines, infos, strict=True)])

    return ask_all


def open_direct(
    settings: RunSettings, weights: Callable[[], NamedTensors], *, rank: int, engines: Sequence[Any]
) -> WeightSender:
    """On every rank, on its thread; on the first one it returns when all workers have joined."""
    import ray
    import torch
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    from vllm.utils.network_utils import get_open_port

    from rewardflow.generate.vllm.weight_source import ModelWeights
    from rewardflow.policy.load_policy import outline_policy

    client = EnginesFromAfar(_asking(engines), len(engines), settings.vllm.tensor_parallel)
    info = NCCLTrainerInitInfo(
        rank=rank,
        master_address=ray.util.get_node_ip_address(),
        master_port=get_open_port(),
        world_size=client.world_size,
    )
    dtype = getattr(torch, settings.trainer.autocast or settings.policy.dtype)
    source = ModelWeights(outline_policy(settings.policy).model, dtype, weights)
    sender: WeightSender = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
    return sender
