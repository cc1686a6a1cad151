"""A model without dropout computes the same in training mode as otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM, PreTrainedModel

from rewardflow.policy.dropout import switch_off_dropout
from rewardflow.policy.load_policy import load_policy
from rewardflow.policy.tiny import build_tokenizer
from rewardflow.settings.run_settings import PolicySettings

TOKENS = torch.arange(1, 9)[None]
SIZES = {"vocab_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 32, "bos_token_id": 1}


def by_modules() -> PreTrainedModel:
    """Has modules for its dropout."""
    return GPT2LMHeadModel(GPT2Config(**SIZES, eos_token_id=2))


def by_numbers() -> PreTrainedModel:
    """Has rates that its layers pass to functions, and drops whole layers."""
    sizes = {"ffn_dim": 32, "word_embed_proj_dim": 32, "layerdrop": 0.5, "attention_dropout": 0.3}
    return OPTForCausalLM(OPTConfig(**SIZES, **sizes, eos_token_id=2))


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits
    return found


@pytest.mark.parametrize("build", [by_modules, by_numbers])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_training_mode_computes_what_generating_computes(build: object, attention: str) -> None:
    model = build()  # type: ignore[operator]
    model.set_attn_implementation(attention)
    expected = logits(model.eval())
    assert not torch.equal(logits(model.train()), expected)
    switch_off_dropout(model)
    assert torch.equal(logits(model.train()), expected)


def test_a_loaded_policy_has_no_dropout_and_its_configuration_stays(tmp_path: Path) -> None:
    by_modules().save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    model = load_policy(PolicySettings(model=str(tmp_path)), seed=0).model
    assert model.training
    assert torch.equal(logits(model), logits(model))
    assert model.config.resid_pdrop == 0.1
