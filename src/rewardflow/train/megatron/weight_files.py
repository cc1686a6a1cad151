"""Writes the weights of all ranks as files that transformers and generators load.

Always true: each pipeline stage writes the weights it has, gathered one at a time, so the whole model is never in one
place; a file holds at most `max_bytes`, unless one weight alone is more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from rewardflow.train.megatron.building import ModelPart
from rewardflow.train.megatron.weight_conversion import stage_weights

INDEX_FILE = "model.safetensors.index.json"
MAX_BYTES = 5 << 30


def write_weights(
    part: ModelPart, folder: Path, *, dtype: torch.dtype = torch.float32, max_bytes: int = MAX_BYTES
) -> None:
    """Writes into an existing folder that all ranks see; all of them call it, on their device threads."""
    from safetensors.torch import save_file

    layout = part.layout
    written: dict[str, str] = {}
    num_bytes = 0
    for number, weights in enumerate(_files(part, dtype, max_bytes)):
        if not layout.is_leader:
            continue
        name = f"model-{layout.pipeline.rank:03}-{number:05}.safetensors"
        save_file(weights, folder / name, metadata={"format": "pt"})
        written |= dict.fromkeys(weights, name)
        num_bytes += sum(weight.nbytes for weight in weights.values())
    found: list[tuple[dict[str, str], int]] = [({}, 0)] * layout.pipeline.size
    dist.all_gather_object(found, (written, num_bytes), group=layout.pipeline.group)
    if layout.is_leader and layout.pipeline.rank == 0:
        weight_map = {name: file for files, _ in found for name, file in files.items()}
        index = {"metadata": {"total_size": sum(size for _, size in found)}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    dist.barrier()


def _files(part: ModelPart, dtype: torch.dtype, max_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Yields the weights of each file. All ranks of the stage gather them; only the leader keeps them."""
    weights: dict[str, Tensor] = {}
    size = 0
    for name, weight in stage_weights(part):
        num_bytes = weight.numel() * dtype.itemsize
        if weights and size + num_bytes > max_bytes:
            yield weights
            weights, size = {}, 0
        kept = weight.to("cpu", dtype).contiguous() if part.layout.is_leader else weight.new_empty(0)
        weights[name] = kept
        size += num_bytes
    if weights:
        yield weights
