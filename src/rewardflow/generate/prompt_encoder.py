"""Turns prompts into tokens, and filters, truncates or refuses those that are too long.

Always true: what `encode` returns has between 1 and `max_prompt_tokens` tokens; a prompt that was dropped is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt, Sampling
from rewardflow.settings.run_settings import GenerationSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingPrompts:
    """The prompts of a data set that fit, in order, and how many were too long."""

    kept: Sequence[Prompt]
    num_filtered: int


class PromptEncoder:
    """Puts messages through the chat template, up to where the answer starts.

    Takes plain text as it is, unless `generation.chat` says that it becomes the user's message.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = settings.max_prompt_tokens
        self._overlong = settings.overlong_prompts
        self._chat = settings.chat

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Returns the tokens to generate from. `truncate` keeps the end of a long prompt, usually the question."""
        tokens = self._tokens(prompt)
        if not tokens:
            raise InvalidInput(f"a prompt must have at least one token, prompt {prompt.uid!r} has none")
        if len(tokens) <= self._max_tokens:
            return tuple(tokens)
        if self._overlong == "truncate":
            return tuple(tokens[-self._max_tokens :])
        raise self._too_long(prompt, len(tokens))

    def fit(self, prompts: Sequence[Prompt]) -> FittingPrompts:
        """Filters or refuses prompts that are too long, when the data set is loaded and before any generation."""
        if self._overlong == "truncate":
            return FittingPrompts(kept=prompts, num_filtered=0)
        kept = []
        for prompt in prompts:
            num_tokens = len(self._tokens(prompt))
            if num_tokens <= self._max_tokens:
                kept.append(prompt)
            elif self._overlong == "error":
                raise self._too_long(prompt, num_tokens)
        return FittingPrompts(kept=kept, num_filtered=len(prompts) - len(kept))

    def _tokens(self, prompt: Prompt) -> Sequence[int]:
        messages = self._messages(prompt)
        if not messages:
            return list(self._tokenizer.encode(prompt.text))
        if self._tokenizer.chat_template is None:
            raise InvalidInput(
                f"a prompt of messages needs a chat template, prompt {prompt.uid!r} has messages and the tokenizer has "
                "no template; set policy.chat_template, or give the prompt as text without generation.chat.wrap_text"
            )
        tokens: Any = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, **self._chat.arguments
        )
        return list(tokens)

    def _messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        if prompt.messages or not self._chat.wrap_text:
            return [dict(message) for message in prompt.messages or ()]
        chat = self._chat
        system = [] if chat.system is None else [{"role": "system", "content": chat.system}]
        asked = prompt.text if chat.instruction is None else f"{prompt.text}\n\n{chat.instruction}"
        return [*system, {"role": "user", "content": asked}]

    def _too_long(self, prompt: Prompt, num_tokens: int) -> InvalidInput:
        return InvalidInput(
            f"a prompt must have at most max_prompt_tokens={self._max_tokens} tokens, prompt {prompt.uid!r} has "
            f"{num_tokens}; raise it, or set generation.overlong_prompts to filter or truncate"
        )


def check_positions(max_prompt_tokens: int, samplings: Sequence[Sampling], max_positions: int | None) -> None:
    for sampling in samplings:
        if max_positions is not None and max_prompt_tokens + sampling.max_response_tokens > max_positions:
            raise InvalidInput(
                "generation.max_prompt_tokens and max_response_tokens together must not exceed the positions the "
                f"model knows, got {max_prompt_tokens} + {sampling.max_response_tokens} for {max_positions}"
            )
