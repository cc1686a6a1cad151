"""Requests with placeholders such as `{response}`, filled from a rollout.

Always true: a placeholder that nothing fills is refused before anything is sent; a text that is one placeholder keeps
the value's type; what a policy wrote is never taken for a placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rewardflow.errors import InvalidInput
from rewardflow.types import Rollout

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.]*)\}")
_FIELDS = ("prompt", "response", "ground_truth", "data_source", "messages", "group_id", "index", "step")


def check_template(template: Any) -> None:
    """Refuse placeholders that nothing fills, before anything is sent."""
    if isinstance(template, str):
        for match in _PLACEHOLDER.finditer(template):
            name = match[1]
            if name is not None and name not in _FIELDS and not name.startswith("extra_info."):
                raise InvalidInput(f"a placeholder must be one of {', '.join(_FIELDS)}, extra_info.key, got {{{name}}}")
    elif isinstance(template, Mapping):
        for item in template.values():
            check_template(item)
    elif isinstance(template, list | tuple):
        for item in template:
            check_template(item)


def fill(template: Any, rollout: Rollout) -> Any:
    """A template with its placeholders filled; what they are filled with is not looked at again."""
    if isinstance(template, str):
        return _fill_text(template, rollout)
    if isinstance(template, Mapping):
        return {key: fill(item, rollout) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill(item, rollout) for item in template]
    return template


def fill_batch(template: Any, rollouts: Sequence[Rollout]) -> Any:
    """The same for a group: each text with a placeholder becomes a list, one entry per rollout."""
    if isinstance(template, str):
        has_placeholder = any(match[1] is not None for match in _PLACEHOLDER.finditer(template))
        filled = [_fill_text(template, rollout) for rollout in rollouts]
        return filled if has_placeholder else filled[0]
    if isinstance(template, Mapping):
        return {key: fill_batch(item, rollouts) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill_batch(item, rollouts) for item in template]
    return template


def _fill_text(template: str, rollout: Rollout) -> Any:
    whole = _PLACEHOLDER.fullmatch(template)
    if whole is not None and whole[1] is not None:
        return _value(whole[1], rollout)
    return _PLACEHOLDER.sub(lambda match: as_text(_value(match[1], rollout)) if match[1] else match[0][0], template)


def _value(name: str, rollout: Rollout) -> Any:
    if name == "prompt":
        return prompt_text(rollout)
    if name == "messages":
        return [dict(message) for message in rollout.messages]
    if name in _FIELDS:
        return getattr(rollout, name)
    key = name.removeprefix("extra_info.")
    if key not in rollout.extra_info:
        raise InvalidInput(f"extra_info of every rollout must have {key!r}, which the request asks for")
    return rollout.extra_info[key]


def conversation(rollout: Rollout) -> list[dict[str, Any]]:
    """The messages that led to the response, and the response as the assistant's."""
    asked = [dict(message) for message in rollout.messages] or [{"role": "user", "content": rollout.prompt}]
    return [*asked, {"role": "assistant", "content": rollout.response}]


def prompt_text(rollout: Rollout) -> str:
    """The prompt, or what its messages say where only those are given."""
    if rollout.prompt:
        return rollout.prompt
    return "\n\n".join(as_text(message.get("content", "")) for message in rollout.messages)


def as_text(value: Any) -> str:
    if value is None:
        return ""
    return (
        value if isinstance(value, str) else orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    )
