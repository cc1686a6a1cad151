"""Calculates what one of Megatron's ranks holds, from the shape of the model and the settings.

Always true: the figures are those of the largest pipeline stage. Weights and the reference have the dtype that passes
compute in, gradients are float32, and what the optimizer keeps is spread over all ranks that hold the same part:
Adam's moments and, where passes compute in less, the weights in float32, which `trainer.offload` leaves on the device
and which count as weights. This works without megatron-core.
"""

from __future__ import annotations

from typing import Any

from rewardflow.settings.run_settings import MegatronSettings, RunSettings
from rewardflow.train.backends import HeldBytes
from rewardflow.train.megatron.shape import ModelShape

_FLOAT32_BYTES = 4
_NUM_MOMENTS = 2  # that Adam keeps for each weight


def held_by_rank(settings: RunSettings, config: Any) -> HeldBytes:
    """`config` is the model's configuration of transformers."""
    from rewardflow.train.device_trainer import compute_dtype_of

    sizes, compute = settings.trainer.megatron, compute_dtype_of(settings.trainer)
    num_weights = weights_of_rank(ModelShape.of(config), sizes)
    computed_with = num_weights * (_FLOAT32_BYTES if compute is None else compute.itemsize)
    num_holders = max(1, settings.runtime.ranks // (sizes.tensor_parallel * sizes.pipeline_parallel))
    updated = num_weights * _FLOAT32_BYTES // num_holders  # this rank's part of the weights in float32
    return HeldBytes(
        weights=computed_with if compute is None else computed_with + updated,
        gradients=num_weights * _FLOAT32_BYTES,
        optimizer=_NUM_MOMENTS * updated,
        reference=computed_with if settings.algorithm.needs_reference else 0,
        critic=0,
        critic_gradients=0,
    )


def weights_of_rank(shape: ModelShape, sizes: MegatronSettings) -> int:
    """Counts the weights of a rank in the largest stage: the only one, or one that has the embedding or the head."""
    tensor, stages = sizes.tensor_parallel, sizes.pipeline_parallel
    ends = shape.hidden * -(-shape.vocabulary // tensor)  # the embedding; the head is as large
    if stages == 1 and not shape.is_tied:
        ends *= 2
    return shape.num_layers // stages * _weights_of_layer(shape, tensor) + ends + shape.hidden


def _weights_of_layer(shape: ModelShape, tensor: int) -> int:
    """The tensor axis cuts matrices and their biases; norms are whole on every rank."""
    attention = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    cut = attention * (shape.hidden + shape.qkv_bias)
    cut += shape.num_heads * shape.head_dim * shape.hidden + 3 * shape.hidden * shape.ffn_hidden
    return cut // tensor + 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)
