"""The runs in a folder: found below it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_runs import write_run

from rewardflow.errors import InvalidInput
from rewardflow.watch.run_catalogue import find_runs


def test_runs_are_found_also_in_folders_of_runs_and_named_by_their_path(tmp_path: Path) -> None:
    for name in ("b", "a", "study/seed_1"):
        write_run(tmp_path / name, steps=0)
    (tmp_path / "notes").mkdir()
    assert [run.key for run in find_runs(tmp_path)] == ["a", "b", "study/seed_1"]


def test_a_runs_own_directory_can_be_watched(tmp_path: Path) -> None:
    write_run(tmp_path / "a", steps=0)
    assert [run.key for run in find_runs(tmp_path / "a")] == ["."]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write_run(tmp_path / "private" / "a", steps=0)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "private")
    assert find_runs(tmp_path / "runs") == []


def test_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InvalidInput, match=r"a folder of runs, or a run's directory, got .*notes.txt"):
        find_runs(tmp_path / "notes.txt")


def test_a_folder_that_its_first_run_has_yet_to_make_has_no_runs(tmp_path: Path) -> None:
    assert find_runs(tmp_path / "runs") == []
    write_run(tmp_path / "runs" / "a", steps=0)
    assert [run.key for run in find_runs(tmp_path / "runs")] == ["a"]
