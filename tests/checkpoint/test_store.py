"""Checkpoints on disk: whole or not there, whatever happens to the process or the disk."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rewardflow.checkpoint.manifest import MANIFEST_FILE, SCHEMA_VERSION, read_manifest
from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.errors import CheckpointError, InvalidInput


def fill(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "numbers").write_bytes(bytes(range(256)) * 10)
    (folder / "text").write_text("contents")


def saved_in(folder: Path, *steps: int, keep: int = 10) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints", keep=keep)
    for step in steps:
        store.save(step, fill, settings={"seed": 0})
    return store


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


# ---- finding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc/passwd", "../step_000001/text", "inner/../../x"])
def test_a_manifest_that_names_a_file_outside_of_its_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    store = saved_in(tmp_path, 1)
    file = store.folder / "step_000001" / MANIFEST_FILE
    manifest = json.loads(file.read_bytes())
    manifest["files"][name] = {"bytes": 1, "sha256": "00"}
    file.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="files must be inside it"):
        read_manifest(file.parent)
    assert store.latest() is None


@pytest.mark.parametrize("text", ['{"step":' * 100_000, '{"schema_version": 1e999}', '{"schema_version": [1]}'])
def test_whatever_a_manifest_holds_it_is_read_or_is_one_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    store = saved_in(tmp_path, 1, 2)
    (store.folder / "step_000002" / MANIFEST_FILE).write_text(text)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_manifest(store.folder / "step_000002")
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1


def test_the_latest_is_found_with_all_that_was_said_of_it(tmp_path: Path) -> None:
    store = saved_in(tmp_path, 2, 10)
    store.save(9, fill, settings={"seed": 3, "data.task": "copy_digits"}, score=0.5)
    found = store.latest()
    assert found is not None
    assert (found.path, found.step) == (store.folder / "step_000010", 10)
    other = read_manifest(store.folder / "step_000009")
    assert (other.settings, other.score) == ({"seed": 3, "data.task": "copy_digits"}, 0.5)
    assert set(other.files) == {"inner/numbers", "text"}


def test_where_nothing_was_saved_nothing_is_found(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "nowhere").latest() is None
    assert saved_in(tmp_path, 1).best() is None


def flip_a_bit(path: Path) -> None:
    contents = bytearray((path / "inner" / "numbers").read_bytes())
    contents[700] ^= 1
    (path / "inner" / "numbers").write_bytes(contents)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit": flip_a_bit,
    "cut short": lambda path: os.truncate(path / "text", 3),
    "a file": lambda path: (path / "inner" / "numbers").unlink(),
    "the manifest": lambda path: (path / MANIFEST_FILE).unlink(),
    "half a manifest": lambda path: os.truncate(path / MANIFEST_FILE, 40),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_skipped_with_a_warning_and_the_one_before_is_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = saved_in(tmp_path, 1, 2, 3)
    DAMAGE[damage](store.folder / "step_000003")
    found = store.latest()
    assert found is not None
    assert found.step == 2
    (warning,) = {record.getMessage() for record in caplog.records if record.levelno == logging.WARNING}
    assert "step_000003" in warning


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_replaced_when_its_step_is_saved_again(tmp_path: Path, damage: str) -> None:
    store = saved_in(tmp_path, 1, 2)
    DAMAGE[damage](store.folder / "step_000002")
    store.save(2, fill, settings={})
    found = store.latest()
    assert found is not None
    assert found.step == 2


def test_one_that_a_later_version_wrote_is_refused_and_not_skipped(tmp_path: Path) -> None:
    store = saved_in(tmp_path, 1, 2)
    path = store.folder / "step_000002" / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(InvalidInput, match=f"at most {SCHEMA_VERSION}"):
        store.latest()


# ---- keeping ------------------------------------------------------------------------------------------------------


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step, score in enumerate([0.1, 0.7, 0.3, 0.7, None, 0.2, 0.1]):
        store.save(step, fill, settings={}, score=score)
    assert names(store) == ["step_000003", "step_000005", "step_000006"]
    best = store.best()
    assert best is not None
    assert best.step == 3


def test_scores_of_different_things_are_not_compared(tmp_path: Path) -> None:
    CheckpointStore(tmp_path, keep=1, score_by="score_mean").save(1, fill, settings={}, score=7.0)
    CheckpointStore(tmp_path, keep=1).save(2, fill, settings={})
    assert names(CheckpointStore(tmp_path)) == ["step_000001", "step_000002"]
    store = CheckpointStore(tmp_path, keep=1, score_by="validation/pass@4")
    store.await_score(3)
    store.save(3, fill, settings={})
    store.rate(3, 0.2)
    store.save(4, fill, settings={}, score=0.1)
    assert names(store) == ["step_000003", "step_000004"]
    best = store.best()
    assert best is not None
    assert (best.step, best.score_by) == (3, "validation/pass@4")


def test_a_checkpoint_whose_score_is_awaited_stays_until_it_is_known_and_then_the_best_does(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    for step in (1, 2, 3):
        store.await_score(step)
        store.save(step, fill, settings={})
    store.save(4, fill, settings={})
    assert names(store) == ["step_000001", "step_000002", "step_000003", "step_000004"]
    store.rate(2, 0.9)
    store.rate(1, 0.5)
    assert names(store) == ["step_000002", "step_000003", "step_000004"]
    best = store.best()
    assert best is not None
    assert (best.step, best.score) == (2, 0.9)
    store.rate(3, None)
    assert names(store) == ["step_000002", "step_000004"]
    store.rate(7, 1.0)  # of a version that was not saved


def test_a_damaged_one_that_lies_ahead_is_none_of_the_latest(tmp_path: Path) -> None:
    saved_in(tmp_path, 8, 10)
    flip_a_bit(tmp_path / "checkpoints" / "step_000010")
    store = saved_in(tmp_path, keep=1)
    store.stand_at(8)
    store.rate(8, None)
    assert names(store) == ["step_000008", "step_000010"]
    store.save(9, fill, settings={})
    found = store.latest()
    assert found is not None
    assert found.step == 9


def test_a_damaged_one_that_lies_ahead_is_not_kept_instead_of_the_best(tmp_path: Path) -> None:
    earlier = CheckpointStore(tmp_path)
    earlier.save(2, fill, settings={}, score=0.5)
    earlier.save(9, fill, settings={}, score=0.9)
    flip_a_bit(tmp_path / "step_000009")
    store = CheckpointStore(tmp_path, keep=1)
    store.stand_at(2)
    store.save(3, fill, settings={}, score=0.1)
    best = store.best()
    assert best is not None
    assert best.step == 2


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "notes").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".hidden").touch()
    store = saved_in(tmp_path, 1, 2, 3, keep=1)
    assert names(store) == [".hidden", "notes", "step_000003"]


# ---- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_last_good_one_and_nothing_of_the_new_one(tmp_path: Path) -> None:
    store = saved_in(tmp_path, 1)

    def fill_the_disk(folder: Path) -> None:
        fill(folder)
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    with pytest.raises(CheckpointError, match=r"step_000002.*No space left"):
        store.save(2, fill_the_disk, settings={})
    assert names(store) == ["step_000001"]
    assert store.latest() is not None


def test_contents_that_cannot_be_made_leave_nothing_behind(tmp_path: Path) -> None:
    store = saved_in(tmp_path, 1)

    def broken(folder: Path) -> None:
        fill(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.save(2, broken, settings={})
    assert names(store) == ["step_000001"]


KILLED = """
import os, pathlib, signal, sys
from rewardflow.checkpoint.store import CheckpointStore

def fill(folder):
    (folder / "half").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)

CheckpointStore(pathlib.Path(sys.argv[1])).save(2, fill, settings={})
"""


def test_what_a_killed_process_was_writing_is_not_found_and_goes_with_the_next_save(tmp_path: Path) -> None:
    store = saved_in(tmp_path, 1)
    killed = subprocess.run([sys.executable, "-c", KILLED, store.folder], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert names(store) == [".step_000002", "step_000001"]
    found = store.latest()
    assert found is not None
    assert found.step == 1
    store.save(4, fill, settings={})
    assert names(store) == ["step_000001", "step_000004"]
