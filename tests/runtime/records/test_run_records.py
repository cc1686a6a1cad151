"""metrics.jsonl of a run that goes on has one line for each step."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from tiny_run import settings_in

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.runtime.records.run_records import cut_metrics, open_records
from rewardflow.runtime.records.validation_records import measured_versions
from rewardflow.settings.run_settings import DataSettings, ValidationSettings


def write(path: Path, *steps: int, tail: str = "") -> None:
    lines = [{"step": step, "source": "train", "n": n} for n, step in enumerate(steps)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)


def read(path: Path) -> list[tuple[int, int]]:
    return [(line["step"], line["n"]) for line in map(json.loads, path.read_text("utf-8").splitlines())]


@pytest.mark.parametrize("tail", ["", '{"step": 9, "n'])
def test_steps_that_will_be_trained_again_are_cut(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 1, 2, 3, tail=tail)
    cut_metrics(path, next_step=2, versions={0, 1})
    assert read(path) == [(0, 0), (1, 1)]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_the_validation_of_a_version_is_no_step_of_that_number_and_is_cut_like_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": n // 2, "source": ("train", "validation")[n % 2], "n": n} for n in range(8)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cut_metrics(path, next_step=2, versions={0, 1})
    assert read(path) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def reopened(folder: Path, *, every: int | None, lost: str | None = None) -> tuple[list[int], set[int]]:
    """Which versions the two files tell of when a run of which versions 0 to 3 were measured goes on at step 2."""
    RunDirectory.create(folder)
    for name in ("metrics.jsonl", "validation.jsonl"):
        told = [version for version in range(4) if name != lost or version != 1]
        lines = [{"step": version, "version": version, "source": "validation", "n": version} for version in told]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    validation = ValidationSettings(data=DataSettings(task="copy_digits", limit=2), every=every)
    settings = settings_in(folder, steps=9, run_dir=folder, validation=validation)
    checkpoint = Checkpoint(path=folder, step=2, settings={}, score=None, written_at=0.0, files={})

    async def reopen() -> None:
        async with contextlib.AsyncExitStack() as stack:
            open_records(settings, stack, resumes=True, checkpoint=checkpoint)

    asyncio.run(reopen())
    return [step for step, _ in read(folder / "metrics.jsonl")], measured_versions(folder)


def test_the_version_at_which_a_run_goes_on_is_told_again_only_where_it_is_measured_again(tmp_path: Path) -> None:
    assert reopened(tmp_path / "due", every=1) == ([0, 1], {0, 1})
    assert reopened(tmp_path / "the last of a shorter run", every=None) == ([0, 1, 2], {0, 1, 2})


@pytest.mark.parametrize("lost", ["metrics.jsonl", "validation.jsonl"])
def test_a_validation_that_a_kill_left_in_one_file_is_told_again_in_both(tmp_path: Path, lost: str) -> None:
    assert reopened(tmp_path, every=1, lost=lost) == ([0], {0})


def test_of_a_step_that_stands_twice_the_last_line_counts(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", 0, 1, 2, 1, 2)
    cut_metrics(tmp_path / "metrics.jsonl", next_step=9, versions=())
    assert read(tmp_path / "metrics.jsonl") == [(0, 0), (1, 3), (2, 4)]


def test_what_is_right_and_what_is_not_there_is_left_alone(tmp_path: Path) -> None:
    cut_metrics(tmp_path / "metrics.jsonl", next_step=0, versions=())
    assert not list(tmp_path.iterdir())
    write(tmp_path / "metrics.jsonl", 0, 1)
    before = (tmp_path / "metrics.jsonl").stat()
    cut_metrics(tmp_path / "metrics.jsonl", next_step=2, versions=())
    assert (tmp_path / "metrics.jsonl").stat().st_ino == before.st_ino
