"""A model that two ranks share, and what a spawned rank does with it."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from gloo_ranks import gloo_rank
from torch import Tensor, nn

from rewardflow.checkpoint.model_state import read_state, state_of, write_state
from rewardflow.train.fsdp2.sharding import Ranks, shard, whole


class Model(nn.Module):
    """Odd sizes, so that shards are uneven; one weight is never used, one buffer is not saved."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.first = nn.Linear(5, width)
        self.second = nn.Linear(width, 3)
        self.second.bias = nn.Parameter(torch.zeros(3))
        self.unused = nn.Parameter(torch.ones(4))
        self.register_buffer("counter", torch.tensor(3))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs).relu())
        return outputs


def model_of(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(6, 5, generator=generator)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([whole(weight.detach()).flatten() for weight in model.parameters()])


def run_rank(rank: int, port: int, directory: str) -> None:
    """Go on from what one process saved, save that, and take one more step."""
    with gloo_rank(rank, port, num_ranks=2):
        model = model_of(seed=rank)  # FSDP2 wants equal ones; loading makes them so
        shard(model, Ranks(torch.device("cpu"), dist.group.WORLD), compute=None)
        optimizer = adam(model)
        read_state(Path(directory) / "one", model, optimizer)
        step(model, optimizer, seed=2)
        write_state(state_of(model, optimizer), Path(directory) / "two")
        step(model, optimizer, seed=3)
        torch.save(weights(model), Path(directory) / f"{rank}.pt")
