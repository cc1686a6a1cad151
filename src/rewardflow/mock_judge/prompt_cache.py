"""Plays a server that keeps what it computed for the beginnings of prompts.

Always true: a prompt reuses the longest beginning that it shares with one of the last prompts, in whole blocks of
tokens, as servers with paged caches do, and never all of it: the last token is always computed.
"""

from __future__ import annotations

from collections import deque
from typing import Final

BLOCK_TOKENS: Final = 16
MAX_PROMPTS: Final = 256


class PromptCache:
    """The last prompts of one server."""

    def __init__(self, chars_a_token: int) -> None:
        self._block_chars = BLOCK_TOKENS * chars_a_token
        self._prompts: deque[str] = deque(maxlen=MAX_PROMPTS)

    def add(self, prompt: str) -> int:
        """Keeps the prompt; returns how many of its tokens an earlier one had computed."""
        most = max((self._shared_blocks(prompt, earlier) for earlier in self._prompts), default=0)
        self._prompts.append(prompt)
        return most * BLOCK_TOKENS

    def _shared_blocks(self, prompt: str, earlier: str) -> int:
        low, high = 0, (min(len(prompt) - 1, len(earlier))) // self._block_chars
        while low < high:  # the blocks that are equal are the first ones
            middle = (low + high + 1) // 2
            end = middle * self._block_chars
            low, high = (middle, high) if prompt[:end] == earlier[:end] else (low, middle - 1)
        return max(low, 0)
