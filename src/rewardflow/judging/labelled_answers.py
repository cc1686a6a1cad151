"""Reads labelled answers: rows as `rewardflow score` reads them, with a column that says how good each answer is.

Always true: a label is on 0 to 1, scaled from the given ends. A file with a row that cannot be read, or without a
label, is refused with its line, because a judge that is tested on other rows than the user thinks is not tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from rewardflow.answers import BadRow, read_answers
from rewardflow.errors import InvalidInput
from rewardflow.types import Rollout

LABEL = "label"


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer, how good it is on 0 to 1, and what the person who labelled it wrote about it."""

    rollout: Rollout
    label: float
    remark: str = ""


def read_labelled_answers(
    path: str | PathLike[str], *, column: str = LABEL, low: float = 0.0, high: float = 1.0
) -> list[LabelledAnswer]:
    """Reads the file. `low` and `high` are the ends of the labels' own scale."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(f"the scale of labels must have a lower and a higher end, got {low:g}:{high:g}")
    answers: list[LabelledAnswer] = []
    for row in read_answers(path):
        if isinstance(row, BadRow):
            raise InvalidInput(f"{path}, line {row.line}: {row.why}")
        label = _number(row.columns.get(column))
        if label is None or not low <= label <= high:
            raise InvalidInput(
                f"{path}, line {row.line}: {column} must be a number from {low:g} to {high:g}, "
                f"got {row.columns.get(column)!r:.80}; --label names another column, --scale another scale"
            )
        remark = row.columns.get(f"{column}_reason")
        answers.append(
            LabelledAnswer(row.rollout, (label - low) / (high - low), remark if isinstance(remark, str) else "")
        )
    _check(answers, str(path))
    return answers


def _check(answers: Sequence[LabelledAnswer], path: str) -> None:
    if not answers:
        raise InvalidInput(f"a judge is tested on at least one labelled answer, got none in {path}")
    if any(answer.rollout.step for answer in answers):
        raise InvalidInput(f"labelled answers must not have a step above 0, got one in {path}")


def _number(value: Any) -> float | None:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None
