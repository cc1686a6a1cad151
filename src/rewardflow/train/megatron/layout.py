"""The layout of ranks: which part of the model a rank holds, and with which ranks it computes.

Always true: ranks of one replica (tensor, pipeline and context) are given the same samples, replicas different ones;
megatron-core keeps its groups in globals, so a process is in one layout at a time, and leaves it as it entered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import MegatronSettings
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.megatron.shape import ModelShape

_SEED = 1  # of generators that only dropout would draw from, and there is none


@dataclass(frozen=True, slots=True)
class Axis:
    """One kind of parallelism: the ranks that differ in it alone, and this rank's number among them."""

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Axis:
        return cls(group, group.rank(), group.size())

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A rank's position. `data` has the replicas, `holders` all ranks with the same part of the model as this one."""

    device: torch.device
    tensor: Axis
    pipeline: Axis
    context: Axis
    data: Axis
    holders: Axis

    @property
    def replicas(self) -> Ranks:
        return Ranks(self.device, self.data.group)

    @property
    def is_leader(self) -> bool:
        """Whether this is the first of the ranks with the same pipeline stage."""
        return self.holders.rank == 0 and self.tensor.rank == 0

    def layers_of(self, shape: ModelShape) -> range:
        """Returns the layers of this rank's pipeline stage."""
        count = shape.num_layers // self.pipeline.size
        return range(self.pipeline.rank * count, (self.pipeline.rank + 1) * count)


@contextmanager
def entered_layout(settings: MegatronSettings, device: torch.device) -> Iterator[Layout]:
    """Enters a layout over all processes of torch.distributed, which is initialized already."""
    if not dist.is_initialized():
        raise InvalidInput("Megatron's ranks need torch.distributed: call init_process_group first, got no group")
    check_world(settings, dist.get_world_size())
    _check_gpu(device)
    parallel_state.initialize_model_parallel(
        settings.tensor_parallel,
        settings.pipeline_parallel,
        context_parallel_size=settings.context_parallel,
    )
    try:
        tensor_parallel.model_parallel_cuda_manual_seed(_SEED)
        yield Layout(
            device=device,
            tensor=Axis.of(parallel_state.get_tensor_model_parallel_group()),
            pipeline=Axis.of(parallel_state.get_pipeline_model_parallel_group()),
            context=Axis.of(parallel_state.get_context_parallel_group()),
            data=Axis.of(parallel_state.get_data_parallel_group()),
            holders=Axis.of(parallel_state.get_data_parallel_group(with_context_parallel=True)),
        )
    finally:
        parallel_state.destroy_model_parallel()


def _check_gpu(device: torch.device) -> None:
    try:
        torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        told = str(error).partition("\n")[0]
        raise InvalidInput(f"trainer.backend=megatron needs a CUDA GPU for each rank, got {device}: {told}") from error


def check_world(settings: MegatronSettings, world: int) -> None:
    if world % settings.num_ranks:
        raise InvalidInput(
            "the number of ranks must be a multiple of tensor_parallel x pipeline_parallel x context_parallel, "
            f"got {world} ranks for {settings}"
        )
