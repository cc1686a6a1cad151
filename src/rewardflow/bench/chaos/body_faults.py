"""Misbehaviours of a server in its JSON: broken, ambiguous, absurd, or without an answer in it.

Always true: where two readers of the same JSON could find different scores, the body carries nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from rewardflow.bench.chaos.exchange import Carries, Exchange, Misbehaviour

_DEEP = 100_000
_Answer = Callable[[Exchange], Awaitable[None]]


def _body(make: Callable[[Exchange], Any]) -> _Answer:
    """Returns an answer with the body that `make` returns."""

    async def answer(x: Exchange) -> None:
        await x.reply(make(x))

    return answer


def _choice(x: Exchange, **fields: Any) -> dict[str, Any]:
    """Returns a completion with the decoy, in whose only choice these fields are changed."""
    whole = x.completion(x.verdict(x.decoy))
    whole["choices"][0] |= fields
    return whole


def _message(x: Exchange, **fields: Any) -> dict[str, Any]:
    return _choice(x, message={"role": "assistant", "content": x.verdict(x.decoy)} | fields)


def _decoy(x: Exchange) -> bytes:
    return orjson.dumps(x.completion(x.verdict(x.decoy)))


def _usage(x: Exchange, **fields: Any) -> dict[str, Any]:
    whole = x.completion()
    return whole | {"usage": whole["usage"] | fields}


def _twice(x: Exchange, name: str) -> bytes:
    """Returns a body in which a key stands twice: first with the truth, then with the decoy."""
    true, other = x.completion(), x.completion(x.verdict(x.decoy))
    if name == "choices":
        first, second = true["choices"], other["choices"]
        return b'{"choices":' + orjson.dumps(first) + b',"choices":' + orjson.dumps(second) + b"}"
    contents = [orjson.dumps(one["choices"][0]["message"]["content"]) for one in (true, other)]
    message = b'{"role":"assistant","content":' + contents[0] + b',"content":' + contents[1] + b"}"
    return b'{"choices":[{"index":0,"finish_reason":"stop","message":' + message + b"}]}"


def _nested_in_reason(x: Exchange) -> bytes:
    deep = b"[" * _DEEP + b"]" * _DEEP
    return _decoy(x)[:-1] + b',"more":' + deep + b"}"


_NOTHING: dict[str, Callable[[Exchange], Any]] = {
    "not_json": lambda x: b"the quality is " + str(x.decoy).encode(),
    "json_with_a_comment": lambda x: b"// here you are\n" + _decoy(x),
    "json_cut_in_half": lambda x: _decoy(x)[:-25],
    "two_documents": lambda x: orjson.dumps(x.completion()) + _decoy(x),
    "words_after_json": lambda x: _decoy(x) + b" hope this helps",
    "server_sent_events": lambda x: b"data: " + _decoy(x) + b"\n\ndata: [DONE]\n\n",
    "null_body": lambda x: b"null",
    "number_body": lambda x: str(x.decoy).encode(),
    "list_body": lambda x: [x.completion(x.verdict(x.decoy))],
    "text_body": lambda x: orjson.dumps(x.verdict(x.decoy)),
    "empty_object": lambda x: {},
    "verdict_without_completion": lambda x: x.verdict(x.decoy).encode(),
    "no_choices": lambda x: x.completion() | {"choices": []},
    "choices_null": lambda x: x.completion() | {"choices": None},
    "choices_object": lambda x: x.completion() | {"choices": {"0": x.verdict(x.decoy)}},
    "choice_null": lambda x: x.completion() | {"choices": [None]},
    "message_null": lambda x: _choice(x, message=None),
    "message_text": lambda x: _choice(x, message=x.verdict(x.decoy)),
    "content_null": lambda x: _message(x, content=None),
    "content_number": lambda x: _message(x, content=x.decoy),
    "content_object": lambda x: _message(x, content={"text": x.verdict(x.decoy)}),
    "content_empty": lambda x: _message(x, content=""),
    "content_blank": lambda x: _message(x, content=" \n\t" * 50),
    "only_tool_calls": lambda x: _message(x, content=None, tool_calls=[{"function": {"arguments": x.verdict()}}]),
    "refused_by_model": lambda x: _message(x, refusal="I cannot judge this."),
    "cut_at_token_limit": lambda x: _choice(x, finish_reason="length"),
    "stopped_by_filter": lambda x: _choice(x, finish_reason="content_filter"),
    "error_as_success": lambda x: {"error": {"code": 500, "message": x.verdict(x.decoy)}},
    "rate_limit_as_success": lambda x: {"error": {"code": 429, "message": "slow down"}},
    "choices_given_twice": lambda x: _twice(x, "choices"),
    "content_given_twice": lambda x: _twice(x, "content"),
    "nested_very_deep": lambda x: b"[" * _DEEP,
    "nested_very_deep_beside": _nested_in_reason,
    "not_a_number_in_json": lambda x: _decoy(x)[:-1] + b',"temperature":NaN}',
    "infinity_in_json": lambda x: _decoy(x)[:-1] + b',"temperature":Infinity}',
    "nul_bytes": lambda x: b"\x00" * 200 + _decoy(x),
}
_TRUTH: dict[str, Callable[[Exchange], Any]] = {
    "no_usage": lambda x: {"choices": x.completion()["choices"]},
    "usage_null": lambda x: x.completion() | {"usage": None},
    "usage_list": lambda x: x.completion() | {"usage": [1, 2]},
    "usage_negative": lambda x: _usage(x, prompt_tokens=-5, completion_tokens=-(2**60)),
    "usage_text": lambda x: _usage(x, prompt_tokens="12", completion_tokens="many"),
    "usage_boolean": lambda x: _usage(x, prompt_tokens=True, completion_tokens=False),
    "usage_fraction": lambda x: _usage(x, prompt_tokens=1.5, completion_tokens=2.5),
    "log_probs_broken": lambda x: _true_choice(x, logprobs={"content": [{"token": 5}, None, "x"]}),
    "many_unknown_fields": lambda x: x.completion() | {f"field_{number}": [number] * 9 for number in range(200)},
}
_PERHAPS: dict[str, Callable[[Exchange], Any]] = {
    "usage_astronomic": lambda x: _usage(x, prompt_tokens=2**52, completion_tokens=2**52),
    "usage_beyond_integers": lambda x: orjson.dumps(_usage(x)).replace(b'"usage":{', b'"usage":{"cost":1e999,', 1),
    "cost_negative": lambda x: _usage(x, cost=-4.0),
    "content_in_parts": lambda x: x.completion([{"type": "text", "text": x.verdict()}]),
    "second_choice_differs": lambda x: _second_choice(x),
    "error_beside_choices": lambda x: x.completion() | {"error": {"code": 500, "message": "half failed"}},
    "half_a_surrogate_pair": lambda x: orjson.dumps(x.completion()).replace(b"seen", b"\\ud800"),
    "finish_reason_missing": lambda x: _true_choice(x, finish_reason=None),
    "very_long_reason": lambda x: x.completion(x.verdict().replace("seen", "seen " * 60_000)),
}


def _true_choice(x: Exchange, **fields: Any) -> dict[str, Any]:
    whole = x.completion()
    whole["choices"][0] |= fields
    return whole


def _second_choice(x: Exchange) -> dict[str, Any]:
    whole = x.completion()
    whole["choices"] += x.completion(x.verdict(x.decoy))["choices"]
    return whole


BODY_FAULTS = (
    *(Misbehaviour(name, Carries.NOTHING, _body(make)) for name, make in _NOTHING.items()),
    *(Misbehaviour(name, Carries.TRUTH, _body(make)) for name, make in _TRUTH.items()),
    *(Misbehaviour(name, Carries.PERHAPS, _body(make)) for name, make in _PERHAPS.items()),
)
