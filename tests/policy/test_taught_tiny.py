"""The model that the demo and `rewardflow bench trl` begin with."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from rewardflow.policy.taught_tiny import save_taught_tiny


def test_the_model_copies_a_part_of_the_digits_and_gives_every_other_a_chance(tmp_path: Path) -> None:
    save_taught_tiny(tmp_path, num_digits=3, seed=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    numerals = [tokenizer.convert_tokens_to_ids(digit) for digit in "0123456789"]
    prompts = [f"{number}{number}{number}=" for number in range(10)]
    with torch.no_grad():
        chances = model(input_ids=torch.tensor(tokenizer(prompts)["input_ids"])).logits[:, -1].softmax(-1)[:, numerals]
    assert 0.2 < chances.diagonal().mean() < 0.6  # the first digit of the answer
    assert chances.min() > 0.01
