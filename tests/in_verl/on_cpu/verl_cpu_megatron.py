"""Lets verl 0.9's Megatron engine run on CPU, with megatron-core's own layers in place of TransformerEngine's.

For tests only. verl loads it by VERL_USE_EXTERNAL_MODULES=verl_cpu_platform,verl_cpu_megatron. mbridge loads and saves
the weights (`vanilla_mbridge=True`). It knows the names of the norms in TransformerEngine's layers; this module adds
those of megatron-core. Sequences stay packed, as verl packs them for GPUs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[2] / "on_megatron"))

from cpu_shim import CudaIsCpu, pretend_in_every_thread  # beside the tests of our own trainer

LAYER = "model.layers.{layer_number}"


class PackedAttention(nn.Module):
    """Replaces TransformerEngine's attention: causal, and no sequence of a pack sees another."""

    def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **_others: Any):
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any, **__: Any) -> Tensor:
        """Maps [tokens, heads, width] to [tokens, heads x width]."""
        lengths = packed_seq_params.cu_seqlens_q_padded.diff().tolist()
        pieces = zip(*(one.transpose(0, 1).split(lengths, dim=1) for one in (query, key, value)), strict=True)
        found = [F.scaled_dot_product_attention(*piece, is_causal=True, enable_gqa=True) for piece in pieces]
        return torch.cat(found, dim=1).transpose(0, 1).flatten(1)


def register_engine() -> None:
    import verl.workers.engine.megatron.transformer_impl  # noqa: F401  # registers it
    from verl.workers.engine.base import EngineRegistry

    for model_type in ("language_model", "value_model"):
        engines = EngineRegistry._engines[model_type]["megatron"]
        engines["cpu"] = engines["cuda"]


def register_bridge() -> None:
    from mbridge.core import register_model
    from mbridge.models.qwen2 import Qwen2Bridge
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    @register_model("qwen2")
    class LocalQwen2Bridge(Qwen2Bridge):
        _MLP_MAPPING: ClassVar[dict[str, list[str]]] = {
            **Qwen2Bridge._MLP_MAPPING,
            "pre_mlp_layernorm.weight": [f"{LAYER}.post_attention_layernorm.weight"],
        }
        _OTHER_MAPPING: ClassVar[dict[str, list[str]]] = {"input_layernorm.weight": [f"{LAYER}.input_layernorm.weight"]}

        def _get_transformer_layer_spec(self, vp_stage: int | None = None) -> Any:
            self.has_vp_stage = True
            spec = get_gpt_decoder_block_spec(self.config, use_transformer_engine=False, vp_stage=vp_stage)
            for layer in spec.layer_specs:
                layer.submodules.self_attention.submodules.core_attention = PackedAttention
            return spec


torch.set_num_threads(1)
pretend_in_every_thread()
CudaIsCpu().__enter__()  # for good, on the thread that Ray runs the worker's methods on
register_engine()
register_bridge()
