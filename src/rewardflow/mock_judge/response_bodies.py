"""Builds the bodies that a judge sends: completions and errors, as OpenAI writes them.

Always true: `usage` counts the text in the body; a body is valid JSON in bytes, unless its fault is to be malformed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rewardflow.mock_judge.behaviour import PlannedReply
from rewardflow.mock_judge.chat_request import ChatRequest
from rewardflow.mock_judge.prompt_format import schema_in_prompt
from rewardflow.mock_judge.verdict import MockVerdict, Score, Spoil, Token

BAD_GATEWAY_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n"
_WRONG_SCHEMA = [Token('{"verdict":"good","details":[1,2,3]}')]


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """One answer, before it is put into a response body."""

    tokens: Sequence[Token]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int | None = None  # of the prompt; None: the server does not tell

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


def complete(chat: ChatRequest, plan: PlannedReply, seed: int, share: float | None) -> ChatCompletion:
    """Makes the judge's answer, with the plan's fault if that is a fault of the text; `share` as in `MockVerdict`."""
    tokens = list(_verdict_tokens(chat, plan, seed, share))
    if plan.fault == "malformed_verdict":
        tokens = tokens[: max(1, len(tokens) * 2 // 3)]
    is_cut = chat.max_tokens is not None and len(tokens) > chat.max_tokens
    return ChatCompletion(tokens[: chat.max_tokens], "length" if is_cut else "stop", chat.prompt_tokens)


def _verdict_tokens(
    chat: ChatRequest, plan: PlannedReply, seed: int, share: float | None
) -> Iterator[Token] | Sequence[Token]:
    if plan.fault == "wrong_schema":
        return _WRONG_SCHEMA
    schema = chat.schema if chat.schema is not None else schema_in_prompt(chat.instructions, chat.prompt)
    return MockVerdict(schema, chat.prompt, seed, _spoil(plan), share).tokens()


def _spoil(plan: PlannedReply) -> Spoil | None:
    if plan.fault == "nan":
        return lambda score: math.nan
    if plan.fault == "out_of_range":
        return _above if plan.luck < 0.5 else _below
    return None


def _above(score: Score) -> float:
    return score.high + max(1, score.high - score.low)


def _below(score: Score) -> float:
    return score.low - max(1, score.high - score.low)


def completion_body(completion: ChatCompletion, *, call_id: str, model: str, num_log_probs: int | None) -> bytes:
    return orjson.dumps(_envelope(completion, completion.text, call_id, model, num_log_probs))


def huge_body(completion: ChatCompletion, *, call_id: str, model: str, num_bytes: int) -> Iterator[bytes]:
    """Yields the right answer followed by `num_bytes` of spaces: valid JSON that a client should refuse to hold."""
    whole = orjson.dumps(_envelope(completion, completion.text + "\0", call_id, model, None))
    before, after = whole.rsplit(b"\\u0000", 1)
    yield before
    block = b" " * 65_536
    for _ in range(num_bytes // len(block)):
        yield block
    yield block[: num_bytes % len(block)] + after


def error_body(message: str, kind: str) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}})


def models_body(model: str) -> bytes:
    listed = {"id": model, "object": "model", "created": 0, "owned_by": "rewardflow"}
    return orjson.dumps({"object": "list", "data": [listed]})


def _envelope(
    completion: ChatCompletion, text: str, call_id: str, model: str, num_log_probs: int | None
) -> dict[str, Any]:
    log_probs = None
    if num_log_probs is not None:
        log_probs = {"content": [_token_entry(token, num_log_probs) for token in completion.tokens], "refusal": None}
    num_completion = len(completion.tokens)
    return {
        "id": f"chatcmpl-{call_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": log_probs,
                "finish_reason": completion.finish_reason,
            }
        ],
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": num_completion,
            "total_tokens": completion.prompt_tokens + num_completion,
            **_cache_details(completion.cached_tokens),
        },
    }


def _cache_details(cached_tokens: int | None) -> dict[str, Any]:
    return {} if cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": cached_tokens}}


def _token_entry(token: Token, num_top: int) -> dict[str, Any]:
    probabilities = token.probabilities or {token.text: 1.0}
    likeliest = sorted(probabilities.items(), key=lambda item: (-item[1], item[0]))[:num_top]
    return {
        **_log_prob(token.text, probabilities[token.text]),
        "top_logprobs": [_log_prob(text, probability) for text, probability in likeliest],
    }


def _log_prob(text: str, probability: float) -> dict[str, Any]:
    return {"token": text, "logprob": math.log(probability), "bytes": list(text.encode())}
