"""Reads one row of a file of answers: the names of its columns, their rules, and its mistakes.

Always true: a row is an `Answer` with a valid rollout or a `BadRow` with the reason; both keep the row's own columns,
so that a verdict can be written beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.types import EMPTY, Reward, Rollout

RESPONSE_NAMES = ("response", "solution_str", "completion")
_MAX_NAMES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Takes the place of a row that is not JSON, or holds a value that Python cannot."""

    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A row that can be judged. `line` counts from 1: lines of a JSONL file, rows of a parquet file."""

    line: int
    columns: Mapping[str, Any]
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be judged, and why. It has no columns if they could not be read."""

    line: int
    columns: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """A row with its verdict. A bad row has none."""

    row: Answer | BadRow
    reward: Reward | None = None

    def __post_init__(self) -> None:
        if isinstance(self.row, Answer) != (self.reward is not None):
            raise InvalidInput(f"an answer has a reward and a bad row has none, got {self.reward!r:.100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A row that was read alone; its place in a group depends on the other rows."""

    line: int
    columns: Mapping[str, Any]
    fields: Mapping[str, Any]
    group_id: str
    index: int | None
    group_size: int | None
    step: int


def draft_of(line: int, row: Any) -> Draft | BadRow:
    if not isinstance(row, Mapping):
        return BadRow(line, EMPTY, f"a row must be an object with named columns, got {row!r:.80}")
    try:
        return _draft(line, row)
    except InvalidInput as error:
        return BadRow(line, row, str(error))


def _draft(line: int, row: Mapping[str, Any]) -> Draft:
    prompt, messages = _question(row)
    fields = {
        "response": _response(row),
        "prompt": prompt,
        "messages": messages,
        "ground_truth": ground_truth_of(row),
        "data_source": typed_column(row, "data_source", str, "text", ""),
        "extra_info": typed_column(row, "extra_info", Mapping, "an object", EMPTY),
    }
    step = _whole(row, "step", at_least=0)
    group_id = row.get("group_id")
    group_size = _whole(row, "group_size", at_least=1)
    if group_id is None:
        if group_size is not None and group_size > 1:
            raise InvalidInput(f"a row with a group_size above 1 must have a group_id, got group_size={group_size}")
        # Without a group, a column named `index` numbers something else, as in verl's datasets.
        return Draft(
            line=line, columns=row, fields=fields, group_id=f"line-{line}", index=None, group_size=None, step=step or 0
        )
    if isinstance(group_id, float) and group_id.is_integer():
        group_id = int(group_id)
    if isinstance(group_id, bool) or not isinstance(group_id, str | int):
        raise InvalidInput(f"group_id must be text or a whole number, got {group_id!r:.80}")
    return Draft(
        line=line,
        columns=row,
        fields=fields,
        group_id=str(group_id),
        index=_whole(row, "index", at_least=0),
        group_size=group_size,
        step=step or 0,
    )


def _response(row: Mapping[str, Any]) -> str:
    for name in RESPONSE_NAMES:
        value = row.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            return _last_content(name, value)
    present = [name for name in RESPONSE_NAMES if name in row]
    if present:
        raise InvalidInput(f"{present[0]} must be text, got null")
    others = ", ".join(list(row)[:_MAX_NAMES_SHOWN]) or "no columns"
    raise InvalidInput(f"a row must have one of {', '.join(RESPONSE_NAMES)}, got {others}")


def _last_content(name: str, value: Any) -> str:
    if isinstance(value, Sequence) and value and isinstance(value[-1], Mapping):
        content = value[-1].get("content")
        if isinstance(content, str):
            return content
    raise InvalidInput(f"{name} must be text or a list of chat messages that ends in text, got {value!r:.80}")


def _question(row: Mapping[str, Any]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Returns the prompt as text and as messages; verl keeps messages in a column named `prompt`."""
    prompt, messages = row.get("prompt"), row.get("messages")
    if prompt is None and messages is None:
        prompt = row.get("question")  # as in GSM8K's own files, where other columns are missing
    if prompt is not None and not isinstance(prompt, str):
        name = "question" if row.get("prompt") is None else "prompt"
        as_messages = messages_of(name, prompt, "text or a list of chat messages")
        prompt, messages = None, as_messages if messages is None else messages
    return prompt or "", messages_of("messages", messages, "a list of chat messages")


def messages_of(name: str, value: Any, rule: str) -> Sequence[Mapping[str, Any]]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(message, Mapping) for message in value):
        raise InvalidInput(f"{name} must be {rule}, got {value!r:.80}")
    return value


def ground_truth_of(row: Mapping[str, Any]) -> Any:
    """Returns the reference answer; None if the row has none, because not every reward needs one."""
    model = row.get("reward_model")
    nested = model.get("ground_truth") if isinstance(model, Mapping) else None
    candidates = (row.get("ground_truth"), nested, row.get("reward_model.ground_truth"), row.get("answer"))
    return next((value for value in candidates if value is not None), None)


def typed_column(row: Mapping[str, Any], name: str, kind: type[Any], rule: str, default: Any) -> Any:
    value = row.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be {rule}, got {value!r:.80}")
    return value


def _whole(row: Mapping[str, Any], name: str, *, at_least: int) -> int | None:
    """Reads a whole number. Takes 3.0 for 3: pandas turns a column with gaps into floats."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InvalidInput(f"{name} must be a whole number of at least {at_least}, got {value!r:.80}")
    return value
