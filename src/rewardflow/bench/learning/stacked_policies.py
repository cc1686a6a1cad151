"""Computes the tiny model for many seeds at once, from their stacked weights.

One torch operation serves all seeds, and a prompt is read once for all of its responses. For so small a model the cost
of calling operations and of repeated prompts dominates, so a run takes a fraction of the CPU time.

Always true: the logits are those of `policy.tiny`'s model with the same weights, up to rounding; no number of one seed
depends on another seed.

Shapes: S seeds, G prompts of P tokens, R responses to each prompt, of T tokens; K heads of keys, Q queries for each of
them, D channels of a head, H channels of a token, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rewardflow.policy.tiny import build_model
from rewardflow.settings.run_settings import PolicySettings

Cache = Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """The numbers that a forward pass needs besides the weights."""

    num_layers: int
    num_key_heads: int
    queries_per_key: int
    head_size: int
    eps: float
    rope_base: float
    pad_id: int  # its embedding gets no gradient, as in transformers

    @property
    def hidden(self) -> int:
        return self.num_key_heads * self.queries_per_key * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedPolicies:
    """The weights of one policy for each seed, by their names in transformers, with the seed as first dimension."""

    shape: TinyShape
    weights: Mapping[str, Tensor]

    @classmethod
    def built(cls, settings: PolicySettings, seeds: Sequence[int]) -> StackedPolicies:
        """Starts each policy from the weights that a run with its seed starts from."""
        models = [build_model(settings.tiny_hidden, settings.tiny_layers, seed=seed) for seed in seeds]
        config = models[0].config
        found = [dict(model.named_parameters()) for model in models]
        shape = TinyShape(
            num_layers=config.num_hidden_layers,
            num_key_heads=config.num_key_value_heads,
            queries_per_key=config.num_attention_heads // config.num_key_value_heads,
            head_size=config.hidden_size // config.num_attention_heads,
            eps=config.rms_norm_eps,
            rope_base=config.rope_parameters["rope_theta"],
            pad_id=config.pad_token_id,
        )
        stacked = {name: torch.stack([one[name].detach() for one in found]).requires_grad_() for name in found[0]}
        return cls(shape=shape, weights=stacked)

    def changed(self, change: Callable[[Tensor], Tensor]) -> StackedPolicies:
        """Returns policies with other weights, such as rounded ones."""
        changed = {name: change(weight) for name, weight in self.weights.items()}
        return StackedPolicies(shape=self.shape, weights=changed)

    def logits(self, prompts_SGP: Tensor, responses_SGRT: Tensor) -> Tensor:
        """Returns the logits that each token of the responses was drawn from: [S, G, R, T, V]."""
        num_responses = responses_SGRT.shape[2]
        first_SGV, prompt = self.read(prompts_SGP)
        first = first_SGV[:, :, None, None].expand(-1, -1, num_responses, 1, -1)
        if responses_SGRT.shape[3] == 1:
            return first
        later, _ = self.continued(responses_SGRT[..., :-1], prompt)
        return torch.cat([first, later], dim=3)

    def read(self, prompts_SGP: Tensor) -> tuple[Tensor, Cache]:
        """Returns the logits after each prompt, [S, G, V], and the keys and values of its tokens."""
        hidden, cache = self._layers(prompts_SGP[:, :, None], None, None)
        return self._head(hidden[:, :, 0, -1]), [(keys[:, :, 0], values[:, :, 0]) for keys, values in cache]

    def continued(self, tokens_SGRT: Tensor, prompt: Cache, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """Returns the logits after each token, and keys and values of all tokens of the responses so far."""
        hidden, cache = self._layers(tokens_SGRT, prompt, past)
        return self._head(hidden), cache

    # -- inside a pass --

    def _layers(self, tokens: Tensor, prompt: Cache | None, past: Cache | None) -> tuple[Tensor, Cache]:
        num_past = 0 if past is None else past[0][0].shape[-2]
        start = num_past + (0 if prompt is None else prompt[0][0].shape[-2])
        rotation = self._rotation(start, tokens.shape[-1])
        rows = torch.stack(
            [
                F.embedding(of_seed.reshape(-1), embedding, padding_idx=self.shape.pad_id)
                for of_seed, embedding in zip(tokens, self.weights["model.embed_tokens.weight"], strict=True)
            ]
        )
        cache = []
        for layer in range(self.shape.num_layers):
            normed = self._normed(rows, f"model.layers.{layer}.input_layernorm")
            attended, keys_values = self._attended(
                layer,
                normed.view(*tokens.shape, -1),
                rotation,
                None if prompt is None else prompt[layer],
                None if past is None else past[layer],
            )
            cache.append(keys_values)
            rows = rows + attended
            rows = rows + self._mlp(layer, self._normed(rows, f"model.layers.{layer}.post_attention_layernorm"))
        return rows.view(*tokens.shape, -1), cache

    def _attended(
        self,
        layer: int,
        normed: Tensor,
        rotation: tuple[Tensor, Tensor],
        prompt: tuple[Tensor, Tensor] | None,
        past: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the layer's attention as rows, and the keys and values of the responses: [S, G, R, K, T, D]."""
        shape = self.shape
        seeds, prompts, responses, width, _ = normed.shape
        name = f"model.layers.{layer}.self_attn."
        rows = normed.view(seeds, -1, shape.hidden)

        def heads(part: str, *sizes: int) -> Tensor:
            found = self._linear(rows, f"{name}{part}_proj", has_bias=True)
            return found.view(seeds, prompts, responses, width, *sizes, shape.head_size)

        queries = heads("q", shape.num_key_heads, shape.queries_per_key).permute(0, 1, 2, 4, 5, 3, 6)
        queries = _rotated(queries, rotation).reshape(
            seeds, prompts, responses, shape.num_key_heads, -1, queries.shape[-1]
        )
        keys = _rotated(heads("k", shape.num_key_heads).transpose(3, 4), rotation)
        values = heads("v", shape.num_key_heads).transpose(3, 4)
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=4), torch.cat([past[1], values], dim=4)
        scores = self._own_scores(queries, keys, width)
        if prompt is None:
            mixed = scores.softmax(-1) @ values
        else:
            shares = torch.cat(
                [_of_prompt(queries, prompt[0].transpose(-1, -2)) / math.sqrt(shape.head_size), scores], -1
            )
            shares = shares.softmax(-1)
            num_prompt = prompt[0].shape[-2]
            mixed = _of_prompt(shares[..., :num_prompt], prompt[1]) + shares[..., num_prompt:] @ values
        mixed = mixed.view(seeds, prompts, responses, shape.num_key_heads, shape.queries_per_key, width, -1)
        joined = mixed.permute(0, 1, 2, 5, 3, 4, 6).reshape(seeds, -1, shape.hidden)
        return self._linear(joined, f"{name}o_proj"), (keys, values)

    def _own_scores(self, queries: Tensor, keys: Tensor, width: int) -> Tensor:
        """Returns scores against the tokens of the same response, -inf for those that come later."""
        num_keys = keys.shape[-2]
        later = torch.full((width, num_keys), -math.inf).triu(num_keys - width + 1)
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(self.shape.head_size)
        return (scores.view(*scores.shape[:-2], -1, width, num_keys) + later).view(scores.shape)

    def _mlp(self, layer: int, normed: Tensor) -> Tensor:
        name = f"model.layers.{layer}.mlp."
        gate, up = self._linear(normed, f"{name}gate_proj"), self._linear(normed, f"{name}up_proj")
        return self._linear(F.silu(gate) * up, f"{name}down_proj")

    def _head(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(hidden.shape[0], -1, hidden.shape[-1])
        logits = self._linear(self._normed(rows, "model.norm"), "lm_head")
        return logits.view(*hidden.shape[:-1], -1)

    def _linear(self, rows: Tensor, name: str, *, has_bias: bool = False) -> Tensor:
        product = torch.bmm(rows, self.weights[f"{name}.weight"].transpose(1, 2))
        return product + self.weights[f"{name}.bias"][:, None] if has_bias else product

    def _normed(self, rows: Tensor, name: str) -> Tensor:
        root = torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.shape.eps)
        return rows * root * self.weights[f"{name}.weight"][:, None]

    def _rotation(self, start: int, width: int) -> tuple[Tensor, Tensor]:
        size = self.shape.head_size
        frequencies = 1.0 / self.shape.rope_base ** (torch.arange(0, size, 2).float() / size)
        angles = torch.arange(start, start + width).float()[:, None] * frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


def _rotated(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosines, sines = rotation
    left, right = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat([-right, left], dim=-1) * sines


def _of_prompt(rows: Tensor, of_prompt: Tensor) -> Tensor:
    """Multiplies [S, G, R, K, N, A] by [S, G, K, A, B], which all responses to a prompt share, in one large product."""
    seeds, prompts, responses, heads, count, _ = rows.shape
    together = rows.transpose(2, 3).reshape(seeds, prompts, heads, responses * count, -1) @ of_prompt
    return together.view(seeds, prompts, heads, responses, count, -1).transpose(2, 3)
