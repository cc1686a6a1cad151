"""Builds the part of a model that one rank holds, as Megatron's GPT.

Always true: layers are TransformerEngine's where it is installed and there is a GPU, else Megatron's own with torch's
attention; the rotary frequencies are transformers' own; a vocabulary that the tensor axis does not divide is padded.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from rewardflow.settings.run_settings import MegatronSettings
from rewardflow.train.megatron.attention import CausalAttention
from rewardflow.train.megatron.context import padded_length
from rewardflow.train.megatron.layout import Layout
from rewardflow.train.megatron.shape import ModelShape, check_fits, rotary_frequencies
from rewardflow.train.megatron.weight_names import hf_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """The part of a rank: `gpt` has the weights; call `module`, which differs where it computes in 16 bit."""

    gpt: nn.Module
    module: nn.Module
    config: Any  # Megatron's
    shape: ModelShape
    layout: Layout

    @property
    def first_layer(self) -> int:
        return self.layout.layers_of(self.shape).start

    @property
    def length_multiple(self) -> int:
        """The number that the length of a batch must be a multiple of."""
        context = self.layout.context.size
        parts = self.layout.tensor.size if self.config.sequence_parallel else 1
        return parts * (2 * context if context > 1 else 1)


def uses_transformer_engine(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("transformer_engine") is not None


def build_part(
    config: Any, settings: MegatronSettings, layout: Layout, *, compute: torch.dtype, recompute: bool = False
) -> ModelPart:
    """Builds from a configuration of transformers, without weights. `recompute`: activations, when going backward."""
    shape = ModelShape.of(config)
    check_fits(shape, settings)
    megatron = _megatron_config(shape, settings, compute, layout.device, recompute)
    gpt: Any = GPTModel(
        config=megatron,
        transformer_layer_spec=_layer_spec(shape, layout.device),
        vocab_size=padded_length(shape.vocabulary, layout.tensor.size),
        max_sequence_length=config.max_position_embeddings,
        pre_process=layout.pipeline.rank == 0,
        post_process=layout.pipeline.is_last,
        share_embeddings_and_output_weights=shape.is_tied,
        position_embedding_type="rope",
    )
    gpt.rotary_pos_emb.inv_freq = rotary_frequencies(config).to(layout.device)
    gpt.to(layout.device)
    if layout.pipeline.rank == 0 and shape.padding is not None:
        gpt.embedding.word_embeddings.register_forward_hook(partial(_without_padding, shape.padding, layout))
    _mark_cut(gpt, shape)
    module = gpt if compute == torch.float32 else Float16Module(megatron, gpt)
    return ModelPart(gpt=gpt, module=module, config=megatron, shape=shape, layout=layout)


def _mark_cut(gpt: nn.Module, shape: ModelShape) -> None:
    """Marks weights that the tensor axis cuts. Megatron does so only where it initializes; the norm needs it."""
    for name, parameter in gpt.named_parameters():
        cut = hf_weights(name, shape)[0].cut
        if cut is not None and not hasattr(parameter, "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=cut, stride=1)


def _without_padding(padding: int, layout: Layout, _module: nn.Module, args: tuple[Any, ...], found: Tensor) -> Tensor:
    """Stops the gradient to the embedding of the padding token, also if sampled, as transformers does."""
    is_padding = args[0] == padding
    if found.shape[:2] != is_padding.shape:  # with sequence parallelism [tokens of this rank, rows]
        is_padding = is_padding.T.chunk(layout.tensor.size)[layout.tensor.rank]
    return torch.where(is_padding[..., None], found.detach(), found)


def _layer_spec(shape: ModelShape, device: torch.device) -> Any:
    if uses_transformer_engine(device):
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=shape.qk_norm)
    spec = get_gpt_layer_local_spec(qk_layernorm=shape.qk_norm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = CausalAttention
    return spec


def _megatron_config(
    shape: ModelShape, settings: MegatronSettings, compute: torch.dtype, device: torch.device, recompute: bool
) -> TransformerConfig:
    has_engine = uses_transformer_engine(device)
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn_hidden,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_heads,
        kv_channels=shape.head_dim,
        layernorm_epsilon=shape.norm_eps,
        normalization="RMSNorm",
        qk_layernorm=shape.qk_norm,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=settings.tensor_parallel,
        pipeline_model_parallel_size=settings.pipeline_parallel,
        context_parallel_size=settings.context_parallel,
        sequence_parallel=has_engine and settings.tensor_parallel > 1,  # Megatron's own norms cannot
        params_dtype=compute,
        pipeline_dtype=compute,
        bf16=compute == torch.bfloat16,
        variable_seq_lengths=True,  # passes of one call of the schedule are of different lengths
        moe_token_dispatcher_type="alltoall",  # there are no experts, but the default refuses different lengths
        calculate_per_token_loss=True,  # gradients add up; the update divides them, once
        perform_initialization=False,  # every weight is read
        use_cpu_initialization=True,
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
        # Fusions need kernels that only TransformerEngine or Apex bring.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=has_engine,
        apply_rope_fusion=False,
    )
