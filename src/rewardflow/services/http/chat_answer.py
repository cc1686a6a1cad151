"""Reads an answer of chat completions: its text, its log-probs, what it used, and what is wrong with it.

Always true: the usage counts also if the answer has a problem; if one of its counts is missing or cannot be true, both
are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rewardflow.errors import CallError, RateLimited, ServiceError, Unparsable
from rewardflow.observe.redact import hide_secrets, redact
from rewardflow.reward.limits.plausible_numbers import CALL_COST_USD, CALL_TOKENS
from rewardflow.services.http.charged_tokens import MostTokens
from rewardflow.types import EMPTY

_MAX_EXCERPT_CHARS: Final = 300
_MAX_MODEL_CHARS: Final = 200
_MAX_REDACTED_CHARS: Final = 4_000  # of an answer of megabytes, most of which is not shown


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A token of the answer, and its most likely alternatives with their log-probs."""

    token: str
    logprob: float
    top: Mapping[str, float] = EMPTY


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer. `tokens` is None if the server sent no log-probs; the counts are 0 if it sent no usage.

    `is_held_to_schema` is true if the server accepted a schema, so that the text should be one object and nothing else.
    """

    text: str
    tokens: tuple[TokenChoice, ...] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = "stop"
    is_held_to_schema: bool = False
    model: str = ""  # as the server names it


@dataclass(frozen=True, slots=True)
class Usage:
    """What a server counted for an answer. Both counts are known, or both are 0."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None  # some gateways send it

    @property
    def has_tokens(self) -> bool:
        return self.prompt_tokens > 0 or self.completion_tokens > 0


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer before its usage is counted. The usage counts even if the answer has a problem."""

    text: str = ""
    tokens: tuple[TokenChoice, ...] | None = None
    finish_reason: str = ""
    usage: Usage = Usage()
    problem: CallError | None = None
    model: str = ""


def read_answer(answer: Any, most: MostTokens) -> RawAnswer:
    if not isinstance(answer, Mapping):
        return RawAnswer(problem=Unparsable(f"the server answered with {_short(answer)}, not with a chat completion"))
    usage = read_usage(answer.get("usage"), most)
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
        return RawAnswer(
            usage=usage, problem=_error_in(answer) or Unparsable(f"no choice in the answer {_short(answer)}")
        )
    finish_reason = str(choice.get("finish_reason") or "")
    text = message.get("content")
    if isinstance(text, list):  # some gateways send the text in parts
        text = "".join(str(part.get("text", "")) for part in text if isinstance(part, Mapping))
    problem = _problem(message, text, finish_reason)
    if problem is not None:
        return RawAnswer(usage=usage, problem=problem)
    named = answer.get("model")
    model = _start_of(named)[:_MAX_MODEL_CHARS] if isinstance(named, str) else ""
    return RawAnswer(str(text), _read_tokens(choice.get("logprobs")), finish_reason, usage, model=model)


def _problem(message: Mapping[str, Any], text: Any, finish_reason: str) -> CallError | None:
    if message.get("refusal"):
        return ServiceError(f"the model refused to judge: {_short(message['refusal'])}", retryable=False)
    if isinstance(text, str) and text.strip():
        return None
    if finish_reason == "content_filter":
        return ServiceError("a content filter stopped the answer (finish_reason content_filter)", retryable=False)
    if finish_reason == "length":
        return Unparsable("the answer has no text: the limit of tokens was spent before it; raise max_tokens")
    return Unparsable(f"the answer has no text (finish_reason {_short(finish_reason or None)})")


def _error_in(answer: Mapping[str, Any]) -> CallError | None:
    """Finds the error that some gateways send inside an answer with status 200."""
    error = answer.get("error")
    if not error:
        return None
    code = error.get("code") if isinstance(error, Mapping) else None
    message = f"the server answered with an error: {_short(error)}"
    if code == 429:
        return RateLimited(message)
    status = code if isinstance(code, int) and 400 <= code < 600 else None
    return ServiceError(message, status=status, retryable=status is None or status >= 500 or status == 408)


def read_usage(usage: Any, most: MostTokens) -> Usage:
    """Reads the counts. If one of them is missing or cannot be true, both are unknown: one alone would be too cheap."""
    if not isinstance(usage, Mapping):
        return Usage()
    cost = usage.get("cost")
    cost_usd = None if cost is None else CALL_COST_USD.read(cost, "usage.cost")
    prompt_tokens, completion_tokens = _read_counts(usage, most)
    if prompt_tokens is None or completion_tokens is None:
        return Usage(cost_usd=cost_usd)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, Mapping):
        cached_tokens = _count(details, "cached_tokens", most.prompt)
    else:
        cached_tokens = _count(usage, "prompt_cache_hit_tokens", most.prompt)  # as DeepSeek tells it
    return Usage(prompt_tokens, completion_tokens, min(cached_tokens or 0, prompt_tokens), cost_usd)


def _read_counts(usage: Mapping[str, Any], most: MostTokens) -> tuple[int | None, int | None]:
    """Returns the tokens of the prompt and of the answer; computes the one that is missing from the total."""
    prompt_tokens = _count(usage, "prompt_tokens", most.prompt)
    completion_tokens = _count(usage, "completion_tokens", most.completion)
    total_tokens = _count(usage, "total_tokens", most.prompt + most.completion)
    if total_tokens is None:
        return prompt_tokens, completion_tokens
    if prompt_tokens is None and usage.get("prompt_tokens") is None and completion_tokens is not None:
        prompt_tokens = _at_least_0(total_tokens - completion_tokens)
    elif completion_tokens is None and usage.get("completion_tokens") is None and prompt_tokens is not None:
        completion_tokens = _at_least_0(total_tokens - prompt_tokens)
    return prompt_tokens, completion_tokens


def _at_least_0(count: int) -> int | None:
    return count if count >= 0 else None


def _count(usage: Mapping[str, Any], name: str, most: int) -> int | None:
    """Returns None if the server sent no count, or one that cannot be true."""
    value = usage.get(name)
    return None if value is None else CALL_TOKENS.count(value, f"usage.{name}", at_most=most)


def _read_tokens(logprobs: Any) -> tuple[TokenChoice, ...] | None:
    """Returns None unless every token is complete: a missing token would shift all positions after it."""
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list):
        return None
    try:
        return tuple(
            TokenChoice(
                str(one["token"]),
                float(one["logprob"]),
                {str(other["token"]): float(other["logprob"]) for other in one.get("top_logprobs") or ()},
            )
            for one in content
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _short(value: Any) -> str:
    text = _start_of(value if isinstance(value, str) else repr(value))
    return text if len(text) <= _MAX_EXCERPT_CHARS else f"{text[: _MAX_EXCERPT_CHARS - 3]}..."


def _start_of(text: str) -> str:
    """Returns the start of a text without secrets. They are hidden before it is cut: half of one is not recognised."""
    return redact(hide_secrets(text)[:_MAX_REDACTED_CHARS])
