"""Reads a run from its directory, also while the run is still going.

Always true: the amount read grows with the number of steps, never with the number of calls; a directory without a run,
or of a later schema, is an error before anything else is read. A run directory may come from a stranger: every file of
it that a report opens lies inside it, also after following links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from rewardflow.errors import InvalidInput
from rewardflow.observe.nesting import read_json
from rewardflow.observe.process_lock import LockHeld, refuse_if_held
from rewardflow.observe.run_directory import (
    AGENT_LOCK_FILE,
    AUDIT_FILE,
    DEVICES_FILE,
    EVENTS_FILE,
    JOURNAL_FILE,
    JUDGE_PROBES_FILE,
    METRICS_FILE,
    REJUDGED_FOLDER,
    ROLLOUTS_FOLDER,
    RUN_FILE,
    SETTINGS_FILE,
    STEPS_FILE,
    TRAINING_LOCK_FILE,
    RunDirectory,
)
from rewardflow.report.line_reading import first_line, last_line
from rewardflow.report.steps import StepRow, read_step_rows

# "running": a process records or trains here now; "open": no end is recorded, and no process of this machine is here.
State = Literal["finished", "running", "open"]

_OPENED_FILES = (
    *(RUN_FILE, EVENTS_FILE, STEPS_FILE, METRICS_FILE, DEVICES_FILE, SETTINGS_FILE, AUDIT_FILE),
    JUDGE_PROBES_FILE,
    *(f"{JOURNAL_FILE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")),  # SQLite opens the others itself
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    directory: RunDirectory
    steps: tuple[StepRow, ...]
    settings: Mapping[str, Any]  # of the training run; empty for an agent's
    agent_settings: Mapping[str, Any]
    state: State
    last_written_at: float | None  # Unix time

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def planned_steps(self) -> int | None:
        steps = self.settings.get("steps")
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None

    @property
    def is_incomplete(self) -> bool:
        """Whether the run trained fewer steps than its settings say."""
        planned = self.planned_steps
        return planned is not None and sum(row.trained is not None for row in self.steps) < planned

    @property
    def open_together(self) -> int:
        """How many steps may be open at once: lines of one step may be this many steps apart in a file."""
        schedule = self.settings.get("schedule")
        staleness = schedule.get("max_staleness") if isinstance(schedule, Mapping) else None
        return 2 + (staleness if isinstance(staleness, int) else 1)


def read_run(path: str | PathLike[str]) -> RunData:
    check_inside(Path(path))
    directory = RunDirectory.open(path)
    steps = read_step_rows(directory)
    opened = first_line(directory.events_path) or {}
    last = last_line(directory.events_path) or {}
    agent_settings = opened.get("settings")
    return RunData(
        directory=directory,
        steps=steps,
        settings=_read_settings(directory),
        agent_settings=agent_settings if isinstance(agent_settings, dict) else {},
        state=_state_of(directory, last),
        last_written_at=_last_written_at(directory),
    )


def check_inside(run_dir: Path) -> None:
    """Raises `InvalidInput` if a file that a report would open is a link out of the directory, or is no plain file."""
    real = run_dir.resolve()
    folders = [run_dir / ROLLOUTS_FOLDER, run_dir / REJUDGED_FOLDER]
    inside = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    files = [*(run_dir / name for name in _OPENED_FILES), *inside]
    for path in (*folders, *files):
        if path.exists() and not path.resolve().is_relative_to(real):
            raise InvalidInput(f"a report opens only files inside the run directory, got a link out of it: {path}")
    for file in files:
        if file.exists() and not file.is_file():
            raise InvalidInput(f"a report opens only plain files, got something else: {file}")


def _read_settings(directory: RunDirectory) -> dict[str, Any]:
    file = directory.path / SETTINGS_FILE
    try:
        settings = read_json(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidInput(f"{SETTINGS_FILE} must be a JSON object, got {file}: {error}") from error
    if not isinstance(settings, dict):
        raise InvalidInput(f"{SETTINGS_FILE} must be a JSON object, got {file}: {settings!r:.80}")
    return settings


def _state_of(directory: RunDirectory, last_event: Mapping[str, Any]) -> State:
    """Asks the locks first: a resumed run goes on after the end of an earlier session."""
    if is_in_use(directory.path):
        return "running"
    return "finished" if last_event.get("event") == "AgentClosed" else "open"


def is_in_use(run_dir: Path) -> bool:
    """Whether a process of this machine, or one that shares its locks, records or trains in the directory."""
    try:
        for name in (TRAINING_LOCK_FILE, AGENT_LOCK_FILE):
            refuse_if_held(run_dir / name)
    except LockHeld:
        return True
    except OSError:  # a link, or a file that may not be opened
        return False
    return False


def _last_written_at(directory: RunDirectory) -> float | None:
    files = (directory.metrics_path, directory.steps_path, directory.events_path, directory.path / DEVICES_FILE)
    return max((file.stat().st_mtime for file in files if file.exists()), default=None)
