"""Settings open the prompts they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.answers.row_files import write_rows
from rewardflow.data import open_prompts, open_source
from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import DataSettings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_rows(tmp_path / "train.jsonl", [{"q": f"{i}?", "question": "no", "a": str(i)} for i in range(4)])
    return tmp_path / "train.jsonl"


def test_a_file_is_read_by_the_columns_of_the_settings(path: Path) -> None:
    settings = DataSettings(path=path, prompt_column="q", answer_column="a", limit=3, shuffle=False)
    prompts = open_source(settings).take(4)
    assert [(prompt.text, prompt.ground_truth) for prompt in prompts] == [
        ("0?", "0"),
        ("1?", "1"),
        ("2?", "2"),
        ("0?", "0"),
    ]


def test_the_seed_orders_files_and_makes_tasks(path: Path) -> None:
    orders = [tuple(p.uid for p in open_source(DataSettings(path=path), seed=seed).take(4)) for seed in range(9)]
    assert len(set(orders)) > 1
    assert (
        open_prompts(DataSettings(task="copy_digits"), seed=1)[0] != open_prompts(DataSettings(task="copy_digits"))[0]
    )


def test_a_limited_task_is_a_small_data_set() -> None:
    source = open_source(DataSettings(task="arithmetic", limit=2, num_digits=1))
    assert sorted(prompt.uid for prompt in source.take(4)) == ["0", "0", "1", "1"]


def test_the_predicate_decides_which_prompts_come(path: Path) -> None:
    source = open_source(DataSettings(path=path, prompt_column="q"), keep=lambda prompt: prompt.text == "3?")
    assert [prompt.text for prompt in source.take(2)] == ["3?", "3?"]


def test_a_data_set_without_its_columns_is_refused_when_it_is_opened(path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the column query that data\.prompt_column names; it has q, question, a"):
        open_source(DataSettings(path=path, prompt_column="query"))
