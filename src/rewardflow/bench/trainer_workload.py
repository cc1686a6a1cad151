"""Writes the folder that contenders train from: a model, and prompts of different lengths.

Always true: the model cannot sample the end token, so that every response has the same length for every contender, and
no contender spends time on forbidding the token.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from rewardflow.bench.contenders.workload import MODEL, PROMPTS, Workload

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def write_workload(workload: Workload, folder: Path) -> int:
    """Writes the folder and returns the number of the model's weights."""
    workload.write(folder)
    lines = [json.dumps({"prompt": prompt}) for prompt in _prompts(workload)]
    (folder / PROMPTS).write_text("\n".join(lines) + "\n", "utf-8")
    model = _model(workload)
    model.save_pretrained(folder / MODEL)
    _tokenizer(end_id=workload.vocabulary).save_pretrained(folder / MODEL)
    return sum(weight.numel() for weight in model.parameters())


def _model(workload: Workload) -> PreTrainedModel:
    """Makes a Qwen2 of these sizes, with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=workload.vocabulary,
        hidden_size=workload.hidden,
        intermediate_size=workload.feed_forward,
        num_hidden_layers=workload.num_layers,
        num_attention_heads=workload.num_heads,
        num_key_value_heads=workload.num_key_heads,
        max_position_embeddings=workload.longest_prompt + workload.response_tokens,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(workload.seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model


def _prompts(workload: Workload) -> list[str]:
    rng = random.Random(workload.seed)
    lengths = range(workload.shortest_prompt, workload.longest_prompt + 1)
    count = workload.prompts_per_step * workload.total_steps
    return ["".join(rng.choices("0123456789", k=rng.choice(lengths))) for _ in range(count)]


def _tokenizer(*, end_id: int) -> PreTrainedTokenizerBase:
    """Makes the tiny model's tokenizer, with another number for its end token."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from rewardflow.policy import tiny

    usual = tiny.build_tokenizer()
    state = json.loads(usual.backend_tokenizer.to_str())
    state["model"]["vocab"][tiny.EOS] = end_id
    for token in state["added_tokens"]:
        if token["content"] == tiny.EOS:
            token["id"] = end_id
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        padding_side="left",
        **{name: getattr(usual, name) for name in ("pad_token", "bos_token", "eos_token", "unk_token")},
    )
