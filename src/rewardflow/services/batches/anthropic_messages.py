"""Translates a chat completion's request into Anthropic's Messages, and a message back into a chat completion.

Always true: a setting that has no equivalent is refused with its name, never dropped. Log-probs and JSON schemas have
none here: the judge's prompt asks for the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rewardflow.errors import InvalidInput

_SAME: Final = frozenset(
    {"model", "max_tokens", "temperature", "top_p", "top_k", "metadata", "thinking", "service_tier"}
)
_RENAMED: Final = {"max_completion_tokens": "max_tokens", "stop": "stop_sequences"}
_OURS: Final = frozenset({"messages", "system"})
_FINISH: Final = {"max_tokens": "length", "refusal": "content_filter"}


def message_params(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a message. `max_tokens` must be set: the service requires it."""
    params: dict[str, Any] = {}
    for name, value in payload.items():
        if name in _SAME:
            params[name] = value
        elif name in _RENAMED:
            params[_RENAMED[name]] = [value] if name == "stop" and isinstance(value, str) else value
        elif name not in _OURS:
            raise InvalidInput(f"a batch of Anthropic's messages has no setting {name!r}; remove it from the judge")
    if "max_tokens" not in params:
        raise InvalidInput("a batch of Anthropic's messages needs max_tokens in the judge's sampling, got none")
    system = [str(one.get("content")) for one in payload["messages"] if one.get("role") == "system"]
    if system:
        params["system"] = "\n\n".join(system)
    params["messages"] = [
        {"role": one.get("role"), "content": _content(one.get("content"))}
        for one in payload["messages"]
        if one.get("role") != "system"
    ]
    return params


def _content(content: Any) -> Any:
    return [_part(part) for part in content] if isinstance(content, list | tuple) else content


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a part of a message: a text stays, an image becomes a block with its source."""
    if part.get("type") != "image_url":
        return dict(part)
    url = str(part["image_url"]["url"])
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    if not data:
        raise InvalidInput("an image inside a message must be given as data:image/...;base64,..., got another form")
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def chat_completion_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the message as a chat completion, with its text and usage."""
    blocks = message.get("content")
    texts = [
        str(one.get("text", ""))
        for one in (blocks if isinstance(blocks, list) else ())
        if isinstance(one, Mapping) and one.get("type") == "text"
    ]
    stop = message.get("stop_reason")
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(texts)},
        "finish_reason": _FINISH.get(str(stop), "stop"),
    }
    return {"model": message.get("model"), "choices": [choice], "usage": _usage(message.get("usage"))}


def _usage(usage: Any) -> dict[str, Any] | None:
    """Returns the usage with all tokens of the prompt: this service counts cached ones beside `input_tokens`."""
    if not isinstance(usage, Mapping):
        return None
    counts = [usage.get("input_tokens")]  # without it the prompt's tokens are unknown; the others may be left out
    counts += [usage.get(name) or 0 for name in ("cache_read_input_tokens", "cache_creation_input_tokens")]
    if not all(isinstance(one, int) for one in counts):
        return None
    return {
        "prompt_tokens": sum(counts),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": counts[1]},
    }
