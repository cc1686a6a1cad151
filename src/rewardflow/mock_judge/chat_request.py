"""Reads a chat-completions request, as far as a judge needs it.

Always true: a `ChatRequest` has a last user message; an option that the judge does not support is refused with an error
that names the rule, as a provider does, and never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from rewardflow.errors import InvalidInput

CHARS_A_TOKEN: Final = 4
MAX_TOP_LOG_PROBS: Final = 20


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`prompt` is the last user message, `instructions` the system's; `num_log_probs` None asks for no log-probs."""

    content: Any
    model: str | None
    instructions: str
    prompt: str
    prompt_tokens: int
    schema: Mapping[str, Any] | None
    num_log_probs: int | None
    max_tokens: int | None


def read_chat_request(body: bytes, *, takes_schema: bool = True) -> ChatRequest:
    """Parses a request. Raises `InvalidInput` where a provider would answer 400."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body must be JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"the body must be a JSON object, got {type(content).__name__}")
    if content.get("stream") or content.get("n", 1) not in (1, None):
        got = f"stream={content.get('stream')!r}, n={content.get('n')!r}"
        raise InvalidInput(f"a mock judge gives one answer in one piece, so stream and n must be left out, got {got}")
    by_role = _texts_by_role(content.get("messages"))
    if "user" not in by_role:
        raise InvalidInput("messages must hold a user message, got none")
    model = content.get("model")
    return ChatRequest(
        content=content,
        model=model if isinstance(model, str) else None,
        instructions="\n".join(by_role.get("system", []) + by_role.get("developer", [])),
        prompt=by_role["user"][-1],
        prompt_tokens=num_tokens(sum(len(text) for texts in by_role.values() for text in texts)),
        schema=_schema(content.get("response_format"), takes_schema),
        num_log_probs=_num_log_probs(content),
        max_tokens=_max_tokens(content),
    )


def num_tokens(chars: int) -> int:
    return max(1, -(-chars // CHARS_A_TOKEN))


def _texts_by_role(messages: Any) -> dict[str, list[str]]:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidInput("messages must be an array of objects")
    by_role: dict[str, list[str]] = {}
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str):
            raise InvalidInput(f"every message must have a role, got {role!r}")
        by_role.setdefault(role, []).append(_text(message.get("content")))
    return by_role


def _text(content: Any) -> str:
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join(
                part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
    raise InvalidInput(f"content must be text or an array of parts, got {type(content).__name__}")


def _schema(response_format: Any, takes_schema: bool) -> Mapping[str, Any] | None:
    """Finds the schema in OpenAI's form, or in llama.cpp's, which puts it beside `json_object`."""
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}} if takes_schema:
            return schema
        case {"type": "json_object", "schema": dict(schema)} if takes_schema:
            return schema
        case {"type": "json_object"}:
            return None
        case {"type": "json_schema"} if not takes_schema:
            raise InvalidInput("response_format must be text or json_object on this server, got json_schema")
    raise InvalidInput(
        f"response_format must be text, json_object or json_schema with a schema, got {response_format!r}"
    )


def _num_log_probs(content: Mapping[str, Any]) -> int | None:
    number = content.get("top_logprobs") or 0
    if not content.get("logprobs"):
        if number:
            raise InvalidInput(f"top_logprobs needs logprobs to be true, got top_logprobs={number!r}")
        return None
    if not _is_whole(number) or not 0 <= number <= MAX_TOP_LOG_PROBS:
        raise InvalidInput(f"top_logprobs must be a whole number in [0, {MAX_TOP_LOG_PROBS}], got {number!r}")
    return int(number)


def _max_tokens(content: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = content.get(name)
        if value is not None:
            if not _is_whole(value) or value < 1:
                raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}")
            return int(value)
    return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
