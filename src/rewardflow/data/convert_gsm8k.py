"""Converts GSM8K's own files to verl's layout, row by row, with the columns that verl's preparation script writes.

Always true: the ground truth of a row is the final number of its answer, without commas; a file in which a row lacks it
raises an error that lists the lines, and nothing is written.
"""

from __future__ import annotations

import re
from os import PathLike
from typing import Any

from rewardflow.answers.row_files import write_rows
from rewardflow.data.table import Table, TableRow, names_shown, read_file, refuse
from rewardflow.errors import InvalidInput

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'

_FINAL = re.compile(r"#### (-?[0-9.,]+)")


def convert_gsm8k(source: str | PathLike[str], target: str | PathLike[str], *, split: str) -> int:
    """Writes the target, JSONL or parquet, as a whole, and returns the number of rows."""
    rows = in_verl_layout(read_file(source), split=split)
    write_rows(target, rows)
    return len(rows)


def in_verl_layout(table: Table, *, split: str) -> list[dict[str, Any]]:
    missing = [name for name in ("question", "answer") if name not in table.columns]
    if missing:
        raise InvalidInput(
            f"{table.name} must have the columns question and answer; it has {names_shown(table.columns)}"
        )
    rows, problems = [], []
    for index, row in enumerate(table.rows):
        try:
            rows.append(_converted(row, index, split))
        except InvalidInput as error:
            problems.append((row.line, str(error)))
    refuse(table.name, problems)
    return rows


def _converted(row: TableRow, index: int, split: str) -> dict[str, Any]:
    question, answer = (_text(row, name) for name in ("question", "answer"))
    final = _FINAL.search(answer)
    if final is None:
        raise InvalidInput(f"answer must end in '#### number', got {answer[-80:]!r}")
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": final[1].replace(",", "")},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def _text(row: TableRow, name: str) -> str:
    value = row.columns.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be text, got {value!r:.80}")
    return value
