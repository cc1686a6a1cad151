"""Decides whether a response ends before its limit of tokens: at an end token, or at a stop string.

Always true: a token that can neither end a response nor complete a stop string costs one lookup in a table, on the
device; Python looks only at rows that drew another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.policy.load_policy import Policy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A tokenizer decodes an incomplete character to it; such a token may be part of any character.
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_MARGIN_TOKENS = 4  # special tokens are silent, and some tokenizers drop a space at the start of what they decode


class StopRule:
    """Finds responses that end. `is_candidate[token]`: a row that drew it may have ended; `ends` decides."""

    def __init__(self, policy: Policy, stop_strings: Sequence[str], vocabulary_size: int) -> None:
        check_stop_strings(stop_strings)
        self._eos_ids = policy.eos_ids
        self._tokenizer = policy.tokenizer
        self._stop_strings = tuple(stop_strings)
        self._tail_tokens = max((len(stop.encode()) for stop in stop_strings), default=0) + _MARGIN_TOKENS
        self.is_candidate = torch.zeros(vocabulary_size, dtype=torch.bool)
        self.is_candidate[[token for token in self._eos_ids if token < vocabulary_size]] = True
        if stop_strings:
            self.is_candidate |= _may_complete(policy.tokenizer, self._stop_strings, vocabulary_size)

    def to(self, device: torch.device) -> None:
        """Moves the table to the device that draws the tokens."""
        self.is_candidate = self.is_candidate.to(device)

    def ends(self, response: Sequence[int]) -> bool:
        """Returns whether the last token ended it. Each token of a stop string is at least a byte long."""
        if response[-1] in self._eos_ids:
            return True
        if not self._stop_strings:
            return False
        text = self._tokenizer.decode(list(response[-self._tail_tokens :]), skip_special_tokens=True)
        return any(stop in text for stop in self._stop_strings)


def check_stop_strings(stop_strings: Sequence[str]) -> None:
    if "" in stop_strings:
        raise InvalidInput(f"generation.stop must not hold an empty string, got {list(stop_strings)}")


def _may_complete(tokenizer: PreTrainedTokenizerBase, stop_strings: Sequence[str], vocabulary_size: int) -> Tensor:
    """Finds the tokens whose text has the last character of a stop string."""
    last = {stop[-1] for stop in stop_strings} | {_INCOMPLETE}
    known = range(min(len(tokenizer), vocabulary_size))
    texts = tokenizer.batch_decode([[token, token] for token in known])  # twice: decoding may drop a leading space
    is_suspect = torch.zeros(vocabulary_size, dtype=torch.bool)
    is_suspect[: len(known)] = torch.tensor([not last.isdisjoint(text) for text in texts])
    return is_suspect
