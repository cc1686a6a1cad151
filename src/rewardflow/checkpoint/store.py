"""The checkpoints of a run: one directory each, named by its step.

    checkpoints/step_000012/     complete: it gets this name when it is
    checkpoints/.step_000014     being written or deleted, or left over from a crash

Always true: a complete checkpoint stays until a newer one is complete: a save that fails, for a full disk or a kill,
changes only what it was writing; a torn or damaged checkpoint is never returned. The store keeps the latest `keep`, the
best, and those that wait for a score, because each of them may be the best. A checkpoint beyond the run's present step
is damaged, or the run would have resumed from it: it does not count as one of the latest, and stays until replaced.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardflow.checkpoint.manifest import Checkpoint, read_manifest, sync, write_manifest, write_score
from rewardflow.errors import CheckpointError

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step_\d{6,}")


class CheckpointStore:
    """Reads and writes the checkpoints in a folder, with one writer. Scores are of `score_by`.

    The first save creates the folder.
    """

    def __init__(self, folder: Path, *, keep: int = 2, score_by: str | None = None) -> None:
        self.folder = folder
        self._keep = keep
        self._score_by = score_by
        self._awaited: set[int] = set()
        self._stands_at: int | None = None

    # -- finding -----------------------------------------------------------------------------------------------------

    def all(self) -> list[Checkpoint]:
        """Returns those with a manifest, the oldest first. Their files may still be damaged."""
        found = []
        for path in self._directories():
            try:
                found.append(read_manifest(path))
            except CheckpointError as error:
                logger.warning("a checkpoint is skipped: %s", error)
        return sorted(found, key=lambda one: one.step)

    def latest(self) -> Checkpoint | None:
        """Returns the newest intact checkpoint. Reads all of its files, and those of newer damaged ones."""
        return _first_intact(reversed(self.all()))

    def best(self) -> Checkpoint | None:
        """Returns the intact one with the highest score, the newest of equals; None if none has a score."""
        return _first_intact(_best_first(self.all()))

    def _directories(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]

    # -- saving ------------------------------------------------------------------------------------------------------

    def save(
        self, step: int, fill: Callable[[Path], None], *, settings: Mapping[str, Any], score: float | None = None
    ) -> Checkpoint:
        """Saves a checkpoint whose contents `fill` writes. Raises `CheckpointError` if the disk fails."""
        target = self._path(step)
        draft = _hidden(target)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            draft.mkdir(mode=0o700)
            fill(draft)
            write_manifest(draft, step=step, settings=settings, score=score, score_by=self._score_by)
            if target.exists():  # of an earlier life of this run, and damaged, or it would have gone on from there
                shutil.rmtree(target)
            os.rename(draft, target)
            sync(self.folder)
            saved = read_manifest(target)
        except (OSError, CheckpointError) as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise CheckpointError(f"{target} could not be written: {error}") from error
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self.stand_at(step)
        self._thin_out()
        return saved

    def stand_at(self, step: int) -> None:
        """Notes the number of steps that the run has trained when it is saved or resumes."""
        self._stands_at = step

    def await_score(self, step: int) -> None:
        """Keeps the checkpoint of this step, also if not yet written, until it has its score."""
        self._awaited.add(step)

    def rate(self, step: int, score: float | None) -> None:
        """Gives a checkpoint the score it waits for; None: it gets none."""
        self._awaited.discard(step)
        path = self._path(step)
        if path.is_dir():
            write_score(path, score, self._score_by)
            self._thin_out()

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"

    def _thin_out(self) -> None:
        """Deletes old checkpoints; retries after the next save what cannot be deleted now."""
        known = [one for one in self.all() if self._stands_at is None or one.step <= self._stands_at]
        best = next(iter(_best_first(known)), None)
        try:
            for old in known[: -self._keep]:
                if old is not best and old.step not in self._awaited:
                    os.rename(old.path, _hidden(old.path))  # so that what is half deleted is not taken for damaged
            self._sweep()
        except OSError as error:
            logger.warning("old checkpoints in %s could not be deleted: %s", self.folder, error)

    def _sweep(self) -> None:
        for path in self.folder.iterdir():
            if path.name.startswith(".") and _NAME.fullmatch(path.name[1:]):
                shutil.rmtree(path)


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}")


def _best_first(known: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Sorts by score, with the scores of the newest's kind alone: others cannot be compared with it."""
    scored = [(one.score, one) for one in known if one.score is not None]
    alike = [(score, one) for score, one in scored if one.score_by == scored[-1][1].score_by]
    return [one for _, one in sorted(alike, key=lambda pair: (pair[0], pair[1].step), reverse=True)]


def _first_intact(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    for checkpoint in checkpoints:
        problem = checkpoint.problem()
        if problem is None:
            return checkpoint
        logger.warning("the checkpoint %s is skipped because it is damaged: %s", checkpoint.path, problem)
    return None
