"""Writes verdicts beside the rows they belong to, as JSONL or parquet.

Always true: the output has one row for each input row, in order; other programs see the old file or the new one, never
half of it; an input column with the name of a verdict column is kept under `input_` and that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from rewardflow.answers import parquet
from rewardflow.answers.answer_row import BadRow, JudgedAnswer
from rewardflow.answers.parquet import VERDICT_TYPES
from rewardflow.answers.row_files import check_format, replacing, write_json_lines
from rewardflow.types import Reward

BAD_ROW = "bad_row"  # the kind of failure of a row that was never sent to a reward


def write_verdicts(
    path: str | PathLike[str], judged: Iterable[JudgedAnswer], *, source: str | PathLike[str] | None = None
) -> None:
    """Replaces the file as a whole. `source`, the input file, lets parquet columns keep their types."""
    path = Path(path)
    rows = (output_row(one) for one in judged)
    with replacing(path) as file:
        if check_format(path) == "jsonl":
            write_json_lines(file, rows)
        else:
            typed = Path(source) if source is not None and check_format(source) == "parquet" else None
            parquet.write_verdict_rows(file, list(rows), source=typed)


def output_row(judged: JudgedAnswer) -> dict[str, Any]:
    row = judged.row
    verdict = _bad(row) if isinstance(row, BadRow) else _verdict(judged.reward or Reward())
    return {**_own_columns(row.columns), **verdict}


def _own_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for name, value in columns.items():
        kept = name
        while kept in VERDICT_TYPES or (kept != name and kept in columns):
            kept = f"input_{kept}"
        own[kept] = value
    return own


def _verdict(reward: Reward) -> dict[str, Any]:
    return {
        "score": reward.value,
        "status": reward.status,
        "kind": reward.kind,
        "error": reward.error,
        "imputed": reward.imputed,
        "components": dict(reward.components),
        "explanation": reward.explanation,
        "extras": dict(reward.extras),
        "attempts": reward.attempts,
        "latency_s": reward.latency_s,
        "cost_usd": reward.cost_usd,
        "tokens": reward.tokens,
        "cached": reward.cached,
    }


def _bad(row: BadRow) -> dict[str, Any]:
    nothing = _verdict(Reward(kind="user_error", error=f"line {row.line}: {row.why}"))
    return {**nothing, "kind": BAD_ROW}
