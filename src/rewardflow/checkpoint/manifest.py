"""The file that makes a directory a checkpoint: it describes the checkpoint and lists its files.

Always true: `checkpoint.json` is written last, when everything it names is on disk; a checkpoint without a `problem`
has every file as it was written, to the byte, and all of its files are inside it. Only the score may change later,
atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rewardflow.errors import CheckpointError, InvalidInput
from rewardflow.observe.nesting import read_json
from rewardflow.observe.private_file import write_private
from rewardflow.observe.run_directory import own_version

MANIFEST_FILE = "checkpoint.json"
VALIDATION_FOLDER = "validation"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A directory whose manifest can be read. `step` steps were trained, so it is also the next to train."""

    path: Path
    step: int
    settings: Mapping[str, Any]  # those that a resumed run must share, by dotted name
    score: float | None  # by which the best is kept
    score_by: str | None = None  # what the score is of
    written_at: float
    files: Mapping[str, SavedFile]  # by path within the directory

    @property
    def has_validations(self) -> bool:
        """Whether validations were under way when the checkpoint was written."""
        return any(name.startswith(f"{VALIDATION_FOLDER}/") for name in self.files)

    def problem(self) -> str | None:
        """Returns what is wrong with the files; None if they are as written. Reads all of them."""
        for name, saved in self.files.items():
            try:
                found = _saved(self.path / name)
            except OSError as error:
                return f"{name} cannot be read: {error.strerror or error}"
            if found.num_bytes != saved.num_bytes:
                return f"{name} has {found.num_bytes:,} bytes and was written with {saved.num_bytes:,}"
            if found != saved:
                return f"{name} is not what was written: its SHA-256 differs"
        return None


def write_manifest(
    folder: Path, *, step: int, settings: Mapping[str, Any], score: float | None, score_by: str | None = None
) -> None:
    """Writes the manifest, which turns the folder into a checkpoint; all other files are there already."""
    files = list(files_in(folder))
    for file in files:
        sync(file)
    for inner in sorted({file.parent for file in files}):
        sync(inner)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "rewardflow_version": own_version(),
        "written_at": time.time(),
        "step": step,
        "score": score,
        "score_by": score_by,
        "settings": dict(settings),
        "files": {file.relative_to(folder).as_posix(): _file_to_json(_saved(file)) for file in files},
    }
    path = folder / MANIFEST_FILE
    write_private(path, json.dumps(manifest, indent=1).encode() + b"\n")
    sync(folder)


def read_manifest(folder: Path) -> Checkpoint:
    """Raises `CheckpointError` if no manifest can be read, `InvalidInput` if a later rewardflow wrote it."""
    path = folder / MANIFEST_FILE
    try:
        manifest = read_json(path.read_bytes())
        version = int(manifest["schema_version"])
        if version > SCHEMA_VERSION:
            raise InvalidInput(
                f"a checkpoint must have a schema version of at most {SCHEMA_VERSION}, got {version} in {path}: it was "
                f"written by rewardflow {manifest.get('rewardflow_version', 'of a later version')}"
            )
        return Checkpoint(
            path=folder,
            step=int(manifest["step"]),
            settings=dict(manifest["settings"]),
            score=None if manifest["score"] is None else float(manifest["score"]),
            score_by=manifest.get("score_by"),  # which was not written before it could change
            written_at=float(manifest["written_at"]),
            files={
                _name_inside(name): SavedFile(num_bytes=int(file["bytes"]), sha256=str(file["sha256"]))
                for name, file in manifest["files"].items()
            },
        )
    except InvalidInput:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}") from error


def write_score(folder: Path, score: float | None, score_by: str | None = None) -> None:
    """Adds a score that was not known when the checkpoint was written."""
    path = folder / MANIFEST_FILE
    try:
        manifest = {**read_json(path.read_bytes()), "score": score, "score_by": score_by}
        write_private(path, json.dumps(manifest, indent=1).encode() + b"\n")
        sync(folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the score of {folder} could not be written: {error}") from error


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def sync(path: Path) -> None:
    """Makes the contents of this file, or the names in this directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name_inside(name: str) -> str:
    """Returns the name of a file of a checkpoint; raises `ValueError` if it leads out of the checkpoint."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"a checkpoint's files must be inside it, got {name!r:.80}")
    return name


def _saved(path: Path) -> SavedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SavedFile(num_bytes=file.tell(), sha256=digest)


def _file_to_json(file: SavedFile) -> dict[str, Any]:
    return {"bytes": file.num_bytes, "sha256": file.sha256}
