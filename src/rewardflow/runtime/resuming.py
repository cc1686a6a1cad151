"""Where the run in a directory can go on.

Always true: that is the latest checkpoint that is intact and of the same model, data and settings, or the beginning if
there is none; either way the run's journal knows the verdicts that were paid for.
"""

from __future__ import annotations

from pathlib import Path

from rewardflow.checkpoint.fingerprint import check_same, fingerprint
from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER
from rewardflow.settings.run_settings import RunSettings


def store_of(settings: RunSettings) -> CheckpointStore:
    if settings.run_dir is None:
        raise InvalidInput("a run can go on only where it was written down: run_dir must be given, got null")
    checkpoint = settings.checkpoint
    folder = Path(settings.run_dir) / CHECKPOINTS_FOLDER
    return CheckpointStore(folder, keep=checkpoint.keep, score_by=checkpoint.keep_best_by)


def find_checkpoint(settings: RunSettings) -> Checkpoint | None:
    """None: the run has none yet. Reads the checkpoint's files to see whether they are intact."""
    checkpoint = store_of(settings).latest()
    if checkpoint is not None:
        check_same(checkpoint.settings, fingerprint(settings), where=str(checkpoint.path))
    return checkpoint
