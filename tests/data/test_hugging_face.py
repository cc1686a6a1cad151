"""Data sets of the `datasets` package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rewardflow.data.hugging_face import read_dataset
from rewardflow.errors import InvalidInput


def load(path: str, name: str | None, *, split: str) -> Iterator[dict[str, Any]]:
    if path == "nowhere":
        raise FileNotFoundError("no such data set")
    return iter([{"prompt": f"{path} {name} {split} {i}"} for i in range(3)])


def test_rows_are_those_of_the_split_and_configuration() -> None:
    table = read_dataset("openai/gsm8k:main", "train", limit=2, load=load)
    assert [(row.line, row.columns["prompt"]) for row in table.rows] == [
        (1, "openai/gsm8k main train 0"),
        (2, "openai/gsm8k main train 1"),
    ]
    assert read_dataset("squad", "test", load=load).rows[0].columns == {"prompt": "squad None test 0"}


def test_a_data_set_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(InvalidInput, match="datasets can load, got nowhere: no such data set"):
        read_dataset("nowhere", "train", load=load)


def test_without_the_package_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # how Python marks what cannot be imported
    with pytest.raises(InvalidInput, match=r"data.dataset=squad needs datasets: pip install 'rewardflow\[datasets\]'"):
        read_dataset("squad", "train")
