"""Turns rows of a table into prompts: finds the columns of prompt and answer and reads them.

Always true: prompt i of the list is row i of the table and has the uid str(i). A table that lacks a needed column
raises an error that lists its columns; rows of wrong types raise an error that lists their lines.

Works without settings for verl's layout (`prompt` as chat messages, `reward_model.ground_truth`, `data_source`,
`extra_info`), for `messages`, and for plain `question` and `answer`, as in GSM8K's own files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.answers.answer_row import ground_truth_of, messages_of, typed_column
from rewardflow.data.table import Table, names_shown, refuse
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt
from rewardflow.types import EMPTY

PROMPT_COLUMNS = ("prompt", "messages", "question")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to read. `a.b` is the column of that name, or b inside the column a. None: the usual columns."""

    prompt: str | None = None
    answer: str | None = None


def prompts_of(table: Table, columns: Columns) -> list[Prompt]:
    prompt_column = _prompt_column(table, columns.prompt)
    if columns.answer is not None:
        _check_column(table, columns.answer, "data.answer_column")
    prompts, problems = [], []
    for index, row in enumerate(table.rows):
        try:
            prompts.append(_prompt(str(index), row.columns, prompt_column, columns.answer))
        except InvalidInput as error:
            problems.append((row.line, str(error)))
    refuse(table.name, problems)
    return prompts


def _prompt_column(table: Table, chosen: str | None) -> str:
    if chosen is not None:
        _check_column(table, chosen, "data.prompt_column")
        return chosen
    names = table.columns
    found = next((name for name in PROMPT_COLUMNS if name in names), None)
    if found is None:
        raise InvalidInput(
            f"{table.name} must have a column {' or '.join(PROMPT_COLUMNS)}, or data.prompt_column must name another; "
            f"it has {names_shown(names)}"
        )
    return found


def _check_column(table: Table, name: str, setting: str) -> None:
    names = table.columns
    if name not in names and name.partition(".")[0] not in names:
        raise InvalidInput(
            f"{table.name} must have the column {name} that {setting} names; it has {names_shown(names)}"
        )


def _prompt(uid: str, row: Mapping[str, Any], prompt_column: str, answer_column: str | None) -> Prompt:
    question = value_at(row, prompt_column)
    is_text = isinstance(question, str)
    if not question:
        raise InvalidInput(f"{prompt_column} must be text or a list of chat messages, got {_shown(question)}")
    if is_text:
        _check_unicode(prompt_column, question)
    return Prompt(
        uid=uid,
        text=question if is_text else "",
        messages=() if is_text else _messages(prompt_column, question),
        ground_truth=ground_truth_of(row) if answer_column is None else _given(row, answer_column),
        data_source=typed_column(row, "data_source", str, "text", ""),
        extra_info=typed_column(row, "extra_info", Mapping, "an object", EMPTY),
    )


def _check_unicode(name: str, text: str) -> None:
    """Refuses half a surrogate pair, which JSON can escape but no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise InvalidInput(f"{name} must be whole characters, got the half surrogate pair {half!a}") from None


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a column or of a field inside one; None if it is missing."""
    if name in row or "." not in name:
        return row.get(name)
    head, _, rest = name.partition(".")
    inner = row.get(head)
    return value_at(inner, rest) if isinstance(inner, Mapping) else None


def _given(row: Mapping[str, Any], name: str) -> Any:
    value = value_at(row, name)
    if value is None:
        raise InvalidInput(f"{name} must have a value, got null")
    return value


def _messages(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    messages = messages_of(name, value, "text or a list of chat messages")
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str | list):
            raise InvalidInput(f"{name}[{i}] must have the texts role and content, got {_shown(dict(message))}")
        if isinstance(message["content"], str):
            _check_unicode(f"{name}[{i}].content", message["content"])
    # Parquet writes null for a key that only other messages have; a chat template would treat it as a value.
    return [{key: one for key, one in message.items() if one is not None} for message in messages]


def _shown(value: Any) -> str:
    return "null" if value is None else f"{value!r:.80}"
