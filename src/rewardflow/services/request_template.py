"""Fills request templates: replaces placeholders such as `{response}` with values of a rollout.

Always true: an unknown placeholder is refused before any request; a text that is exactly one placeholder keeps the
type of the value; text from the policy is never read as a placeholder.
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
    """Refuses placeholders that no rollout can fill."""
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
    """Fills the placeholders of a template. Placeholders inside the filled-in values are left alone."""
    if isinstance(template, str):
        return _fill_text(template, rollout)
    if isinstance(template, Mapping):
        return {key: fill(item, rollout) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill(item, rollout) for item in template]
    return template


def fill_batch(template: Any, rollouts: Sequence[Rollout]) -> Any:
    """Fills a template for a group: each text with a placeholder becomes a list with one entry per rollout."""
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
        raise InvalidInput(f"extra_info of every rollout must have {key!r}, which the request needs")
    return rollout.extra_info[key]


def conversation(rollout: Rollout) -> list[dict[str, Any]]:
    """Returns the messages of the prompt, followed by the response as an assistant message."""
    asked = [dict(message) for message in rollout.messages] or [{"role": "user", "content": rollout.prompt}]
    return [*asked, {"role": "assistant", "content": rollout.response}]


def prompt_text(rollout: Rollout) -> str:
    """Returns the prompt, or the contents of its messages if only those are given."""
    if rollout.prompt:
        return rollout.prompt
    return "\n\n".join(as_text(message.get("content", "")) for message in rollout.messages)


def as_text(value: Any) -> str:
    if value is None:
        return ""
    return (
        value if isinstance(value, str) else orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    )
