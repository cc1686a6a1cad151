"""Finds the runs in a folder, and gives each a name that is safe in a URL.

Always true: a run is a directory below the folder, also after following links. A name that a client sends is only
looked up, never used as a path. The search is bounded in depth and number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import RUN_FILE

MAX_RUNS = 1000
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class FoundRun:
    key: str  # its path below the folder, with slashes; "." if the folder itself is a run
    path: Path


def find_runs(folder: Path) -> list[FoundRun]:
    """Returns the runs below the folder, in the order of their names; none if the first run has yet to make it."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise InvalidInput(f"watch takes a folder of runs, or a run's directory, got {folder}")
    root = folder.resolve()
    runs = sorted((FoundRun(_key(path, folder), path) for path in _run_directories(folder, root)), key=lambda r: r.key)
    return runs[:MAX_RUNS]


def _run_directories(folder: Path, root: Path, depth: int = 0) -> Iterator[Path]:
    if (folder / RUN_FILE).is_file():
        yield folder
    elif depth < _MAX_DEPTH:
        try:
            inner = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir() and entry.name[:1] != "."]
        except OSError:  # a folder that may not be read
            return
        for path in inner:
            if path.resolve().is_relative_to(root):
                yield from _run_directories(path, root, depth + 1)


def _key(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
