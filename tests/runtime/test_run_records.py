"""metrics.jsonl of a run that goes on has one line for each step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewardflow.runtime.run_records import cut_metrics


def write(path: Path, *steps: int, tail: str = "") -> None:
    lines = [{"step": step, "source": "train", "n": n} for n, step in enumerate(steps)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)


def read(path: Path) -> list[tuple[int, int]]:
    return [(line["step"], line["n"]) for line in map(json.loads, path.read_text("utf-8").splitlines())]


@pytest.mark.parametrize("tail", ["", '{"step": 9, "n'])
def test_steps_that_will_be_trained_again_are_cut(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 1, 2, 3, tail=tail)
    cut_metrics(path, next_step=2)
    assert read(path) == [(0, 0), (1, 1)]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_the_validation_of_a_version_is_no_step_of_that_number_and_is_cut_like_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": n // 2, "source": ("train", "validation")[n % 2], "n": n} for n in range(8)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cut_metrics(path, next_step=2)
    assert read(path) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def test_of_a_step_that_stands_twice_the_last_line_counts(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", 0, 1, 2, 1, 2)
    cut_metrics(tmp_path / "metrics.jsonl", next_step=9)
    assert read(tmp_path / "metrics.jsonl") == [(0, 0), (1, 3), (2, 4)]


def test_what_is_right_and_what_is_not_there_is_left_alone(tmp_path: Path) -> None:
    cut_metrics(tmp_path / "metrics.jsonl", next_step=0)
    assert not list(tmp_path.iterdir())
    write(tmp_path / "metrics.jsonl", 0, 1)
    before = (tmp_path / "metrics.jsonl").stat()
    cut_metrics(tmp_path / "metrics.jsonl", next_step=2)
    assert (tmp_path / "metrics.jsonl").stat().st_ino == before.st_ino
