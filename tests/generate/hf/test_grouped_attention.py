"""Attention for decoding against transformers' own."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache

from rewardflow.generate.hf.grouped_attention import grouped_attention
from rewardflow.policy.load_policy import Policy

PROMPTS = torch.tensor([[0, 0, 0, 5, 6, 17], [7, 8, 9, 10, 11, 17], [0, 12, 4, 4, 4, 17]])
MASK = (PROMPTS != 0).long()


def logits_after(policy: Policy, mask: torch.Tensor | None) -> torch.Tensor:
    """Of a prompt, and of two tokens that are decoded after it."""
    cache, told = DynamicCache(), []
    for column in (slice(0, 4), slice(4, 5), slice(5, 6)):
        seen = None if mask is None else mask[:, : column.stop]
        output = policy.model(PROMPTS[:, column], attention_mask=seen, past_key_values=cache, use_cache=True)
        told.append(output.logits[:, -1])
    return torch.stack(told)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@torch.no_grad()
def test_it_computes_what_sdpa_computes(policy: Policy, mask: torch.Tensor | None) -> None:
    expected = logits_after(policy, mask)
    with grouped_attention(policy.model):
        assert policy.model.config._attn_implementation != "sdpa"
        assert torch.allclose(logits_after(policy, mask), expected, atol=1e-4)
    assert policy.model.config._attn_implementation == "sdpa"


def test_sdpa_is_back_after_an_error(policy: Policy) -> None:
    with pytest.raises(RuntimeError), grouped_attention(policy.model):
        raise RuntimeError
    assert policy.model.config._attn_implementation == "sdpa"


def test_another_attention_is_left_alone(policy: Policy) -> None:
    model = copy.deepcopy(policy.model)
    model.set_attn_implementation("eager")
    with grouped_attention(model):
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "eager"
