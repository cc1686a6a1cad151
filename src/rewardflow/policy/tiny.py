"""Builds a model small enough to learn in seconds on a laptop, and a tokenizer of single characters, both in code.

Always true: the same seed and sizes give the same weights, and the global random state stays unchanged. The results are
an ordinary transformers model and fast tokenizer.
"""

from __future__ import annotations

import string

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
CHARACTERS = string.digits + "+-*=> " + string.ascii_letters

# Every turn but the model's own ends in ">"; an answer starts after it.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '>' }}{% endfor %}"
)

_NUM_HEADS, _NUM_KEY_VALUE_HEADS = 4, 2
_MAX_POSITIONS = 4096
# transformers' 0.02 suits a width of about 1024; so small a model would learn far more slowly with it.
_INITIAL_STD, _ITS_WIDTH = 0.02, 1024


def build_tokenizer() -> PreTrainedTokenizerBase:
    """Builds a tokenizer with one token for each character; an unknown character becomes the unknown token."""
    vocabulary = {token: number for number, token in enumerate((PAD, BOS, EOS, UNKNOWN, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=_MAX_POSITIONS,
    )


def build_model(hidden: int, num_layers: int, *, seed: int, attention: str | None = None) -> PreTrainedModel:
    """Builds a Qwen2 model for the tokenizer above, with random weights."""
    at_least("policy.tiny_layers", num_layers, 1)
    at_least("policy.tiny_hidden", hidden, 2 * _NUM_HEADS)
    if hidden % (2 * _NUM_HEADS):  # rotary embeddings rotate pairs, so each head needs an even width
        raise InvalidInput(f"policy.tiny_hidden must be divisible by {2 * _NUM_HEADS}, got tiny_hidden={hidden}")
    tokenizer = build_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=num_layers,
        num_attention_heads=_NUM_HEADS,
        num_key_value_heads=_NUM_KEY_VALUE_HEADS,
        max_position_embeddings=_MAX_POSITIONS,
        initializer_range=_INITIAL_STD * (_ITS_WIDTH / hidden) ** 0.5,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=attention
        )
    return model
