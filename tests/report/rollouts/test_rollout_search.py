"""Searching a run's rollouts: the newest first, in the files of steps or in the journal."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet

import rewardflow as rf
from rewardflow.observe.run_directory import ROLLOUTS_FOLDER
from rewardflow.report.rollouts.rollout_search import find_rollouts
from rewardflow.report.run_data import read_run


def judge(solution_str: str) -> tuple[float, str, str]:
    return 1.0, f"How good is {solution_str}?", f"The judge liked {solution_str}"


def scored_run(folder: Path) -> Path:
    rollouts = [
        rf.Rollout(group_id=f"q{step}", index=index, group_size=2, response=f"Answer {step}-{index}", step=step)
        for step in range(3)
        for index in range(2)
    ]
    rf.score(rollouts, judge, run_dir=folder / "run", journal=folder / "run" / "journal.db", max_concurrency=1)
    return folder / "run"


def test_the_journals_newest_rollouts_come_first_whatever_the_case(tmp_path: Path) -> None:
    run = read_run(scored_run(tmp_path))
    found = find_rollouts(run, "ANSWER")
    assert [one.step for one in found.rollouts] == [2, 2, 1, 1, 0, 0]
    assert "6 rollouts of the latest 6 verdicts" in found.origin
    (newest,) = find_rollouts(run, "answer", at_most=1).rollouts
    assert newest.answer == "Answer 2-1"


def test_what_the_judge_was_asked_and_said_is_searched_too(tmp_path: Path) -> None:
    run = read_run(scored_run(tmp_path))
    (one,) = find_rollouts(run, "liked answer 1-0").rollouts
    assert (one.step, one.index) == (1, 0)
    assert find_rollouts(run, "nobody said this").rollouts == ()


def test_files_of_steps_are_preferred_and_read_from_the_newest(tmp_path: Path) -> None:
    path = scored_run(tmp_path)
    folder = path / ROLLOUTS_FOLDER
    folder.mkdir()
    for step in range(3):
        rows = {"step": [step] * 2, "group_id": ["q"] * 2, "index": [0, 1], "response": ["alpha", "beta"]}
        pyarrow.parquet.write_table(pyarrow.table(rows), folder / f"step_{step:06}.parquet")
    (folder / "step_000003.parquet").write_bytes(b"half a file")
    found = find_rollouts(read_run(path), "beta", at_most=2)
    assert [(one.step, one.index) for one in found.rollouts] == [(2, 1), (1, 1)]


def test_a_run_without_rollouts_says_so(tmp_path: Path) -> None:
    rf.score([rf.Rollout(group_id="q", response="x")], judge, run_dir=tmp_path / "run")
    assert "neither rollouts nor a journal" in find_rollouts(read_run(tmp_path / "run"), "x").origin
