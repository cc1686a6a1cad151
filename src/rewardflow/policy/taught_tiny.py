"""Builds a tiny model that was taught to copy digits with many mistakes.

A model that knows nothing may settle on a wrong digit before it ever tries the right one, and then learns no more: how
soon it learns is chance. This one begins as a pretrained model does: it gives every answer a chance, and learns the
rest by its rewards.

Always true: the same seed gives the same weights.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import torch

from rewardflow.policy import tiny
from rewardflow.policy.torch_threads import torch_threads

_HIDDEN, _LAYERS = 64, 2
_STEPS, _ROWS, _LR = 300, 64, 3e-3
_COPIED: Final = 0.3  # of the digits that it is taught; the others are any digit
_NUMERALS: Final = "0123456789"


def save_taught_tiny(folder: Path, *, num_digits: int, seed: int) -> None:
    """Writes the model and its tokenizer to a folder. It answers prompts of the task `copy_digits`."""
    model, tokenizer = tiny.build_model(_HIDDEN, _LAYERS, seed=seed), tiny.build_tokenizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, weight_decay=0.0)
    rng = random.Random(f"taught/{seed}")
    with torch_threads(1):
        for _ in range(_STEPS):
            texts = [_example(rng, num_digits) for _ in range(_ROWS)]
            ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts])
            answers = ids[:, -(num_digits + 1) :]
            logits = model(input_ids=ids).logits[:, -(num_digits + 2) : -1]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _example(rng: random.Random, num_digits: int) -> str:
    """Returns a prompt with an answer of which most digits are wrong."""
    prompt = "".join(rng.choices(_NUMERALS, k=num_digits))
    answer = [digit if rng.random() < _COPIED else rng.choice(_NUMERALS) for digit in prompt]
    return f"{prompt}={''.join(answer)}"
