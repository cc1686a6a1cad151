"""Reads a file of answers, JSONL or parquet.

Always true: every row of the file is returned once, in the file's order, as an `Answer` or a `BadRow`; a bad row does
not stop the reading. Only a file that cannot be read at all is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

from rewardflow.answers.answer_row import Answer, BadRow, Draft, Unreadable, draft_of
from rewardflow.answers.grouping import grouped
from rewardflow.answers.row_files import read_rows
from rewardflow.errors import InvalidInput
from rewardflow.types import EMPTY


def read_answers(path: str | PathLike[str]) -> Iterator[Answer | BadRow]:
    """Yields every row, after it has read the whole file: a group's rows may be anywhere in it."""
    yield from grouped([_draft(line, row) for line, row in read_rows(path)])


def first_rows(rows: Sequence[Answer | BadRow], count: int) -> list[Answer | BadRow]:
    """Returns the first `count` rows and the later rows of their groups, because half a group may score otherwise."""
    if count < 1:
        raise InvalidInput(f"the number of rows must be at least 1, got {count}")
    started = {_place(row) for row in rows[:count] if isinstance(row, Answer)}
    later = [row for row in rows[count:] if isinstance(row, Answer) and _place(row) in started]
    return [*rows[:count], *later]


def _place(answer: Answer) -> tuple[int, str]:
    return answer.rollout.step, answer.rollout.group_id


def _draft(line: int, row: Any) -> Draft | BadRow:
    return BadRow(line, EMPTY, row.why) if isinstance(row, Unreadable) else draft_of(line, row)
