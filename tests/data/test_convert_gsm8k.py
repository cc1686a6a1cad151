"""GSM8K's own files in verl's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardflow.answers.row_files import read_rows, write_rows
from rewardflow.data import open_prompts
from rewardflow.data.convert_gsm8k import convert_gsm8k, in_verl_layout
from rewardflow.data.table import table_of
from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import DataSettings

ROWS = [
    {"question": "How many clips?", "answer": "48+24 = <<48+24=72>>72\n#### 72"},
    {"question": "How much?", "answer": "#### -1,234.50"},
]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_have_the_columns_that_verl_writes(ending: str, tmp_path: Path) -> None:
    source, target = tmp_path / "train.jsonl", tmp_path / f"out.{ending}"
    write_rows(source, ROWS)
    assert convert_gsm8k(source, target, split="train") == 2
    first, second = (row for _, row in read_rows(target))
    assert first == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": 'How many clips? Let\'s think step by step and output the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"split": "train", "index": 0, "answer": ROWS[0]["answer"], "question": "How many clips?"},
    }
    assert (second["reward_model"]["ground_truth"], second["extra_info"]["index"]) == ("-1234.50", 1)


def test_what_was_converted_can_be_trained_on_and_is_the_same_in_both_formats(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", ROWS)
    sets = []
    for ending in ("jsonl", "parquet"):
        convert_gsm8k(tmp_path / "train.jsonl", tmp_path / f"out.{ending}", split="train")
        sets.append(open_prompts(DataSettings(path=tmp_path / f"out.{ending}")))
    assert sets[0].fingerprint == sets[1].fingerprint
    assert (sets[1][0].ground_truth, sets[1][0].messages[0]["role"]) == ("72", "user")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"prompt": "x"}], "t must have the columns question and answer; it has prompt"),
        ([ROWS[0], {"question": "x", "answer": "42"}], "t, line 2: answer must end in '#### number', got '42'"),
        ([{"question": None, "answer": "#### 1"}], "t, line 1: question must be text, got None"),
    ],
)
def test_what_is_not_gsm8k_is_refused(rows: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        in_verl_layout(table_of("t", enumerate(rows, start=1)), split="train")
    assert str(caught.value) == problem
