"""Bounds the tokens that a server can charge for one request of chat completions.

Always true: a request that may be charged for more than the tokens of its texts has no bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TEMPLATE_TOKENS: Final = 512  # more than a chat template adds to two messages
USUAL_COMPLETION_TOKENS: Final = 256  # of an answer that has no limit
# With these a server may charge for several answers, or for more than the tokens of a text: a search, a sound, or the
# tokens of a predicted answer that it did not use.
_BEYOND_ONE_TEXT: Final = (
    *("best_of", "use_beam_search", "extra_body"),
    *("modalities", "audio", "web_search_options", "plugins", "prediction"),
)
# With these, some services take max_tokens as the limit of what comes after the thoughts.
_THOUGHTS_BESIDE: Final = ("enable_thinking", "thinking_budget")
_ROOM_TOKENS: Final = 131_072
_ROOM_FACTOR: Final = 4
_BYTES_A_CHAR: Final = 4  # at most, and a token stands for at least one byte


def completion_limit(sampling: Mapping[str, Any]) -> int:
    """Returns the limit that a request sets for its answer, or the usual number of tokens."""
    limit = sampling.get("max_completion_tokens") or sampling.get("max_tokens")
    return limit if isinstance(limit, int) else USUAL_COMPLETION_TOKENS


def most_completion_tokens(sampling: Mapping[str, Any]) -> int | None:
    """Returns the largest number of tokens that can be charged for an answer; None if more can be charged for."""
    limits = [sampling[name] for name in ("max_tokens", "max_completion_tokens") if sampling.get(name) is not None]
    is_limited = limits and all(isinstance(one, int) and one > 0 for one in limits)
    beyond = _BEYOND_ONE_TEXT if sampling.get("max_completion_tokens") else (*_BEYOND_ONE_TEXT, *_THOUGHTS_BESIDE)
    return max(limits) if is_limited and not any(sampling.get(name) for name in beyond) else None


@dataclass(frozen=True, slots=True)
class MostTokens:
    """The most tokens that a server can have counted for a request, with room for what templates and thoughts add."""

    prompt: int = _ROOM_TOKENS
    completion: int = _ROOM_TOKENS

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> MostTokens:
        texts = [message.get("content") for message in messages]
        num_chars = sum(len(text if isinstance(text, str) else repr(text)) for text in texts)
        return cls(_ROOM_TOKENS + _BYTES_A_CHAR * num_chars, _ROOM_TOKENS + _ROOM_FACTOR * completion_limit(sampling))
