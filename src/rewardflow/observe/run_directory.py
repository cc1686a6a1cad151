"""Creates, opens and reads a run's directory: its name, its events, one line per step, and its journal.

    run.json        the run's name, start and schema version
    events.jsonl    one event a line, in order; a resumed run appends
    steps.jsonl     the totals of one step and source a line; their last line counts
    metrics.jsonl   one line for each trained step, and for each measured version
    validation.jsonl, validation_rollouts.jsonl   results of policy versions on validation data, and their rollouts
    devices.jsonl   what the devices did, as events
    settings.json   the settings of a training run
    journal.db      paid verdicts, if the run keeps its journal here
    checkpoints/    checkpoints from which a training run can resume
    rollouts/       rollouts of a training run with their verdicts, a parquet file for each step
    tensorboard/    the figures of metrics.jsonl for TensorBoard, if it is installed
    wandb/          files of Weights & Biases, if it is used; wandb.json names the run there
    eval/           results of `rewardflow eval`, also from before the run began
    agent.lock, training.lock   the process that records or trains here now; absent when none does

Always true: a directory holds one run, and one that holds other files is refused and left alone; `run.json` is complete
or absent; a directory of a later schema version is refused. The files of lines keep what `line_file` promises.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rewardflow.errors import InvalidInput
from rewardflow.observe.events import SCHEMA_VERSION, Event, from_json, to_json
from rewardflow.observe.line_file import LineFile, LineFileStatistics, encode_line, read_lines
from rewardflow.observe.nesting import read_json
from rewardflow.observe.private_file import write_private

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
STEPS_FILE = "steps.jsonl"
METRICS_FILE = "metrics.jsonl"
VALIDATION_FILE = "validation.jsonl"
VALIDATION_ROLLOUTS_FILE = "validation_rollouts.jsonl"
DEVICES_FILE = "devices.jsonl"
SETTINGS_FILE = "settings.json"
JOURNAL_FILE = "journal.db"
AUDIT_FILE = "audit.jsonl"
AUDIT_JOURNAL_FILE = "audit.db"
JUDGE_PROBES_FILE = "judge_probes.json"  # fixed answers, to notice that the training judge changed
PAUSED_FILE = "PAUSED"  # while it exists, a run with `audit.on_alarm: pause` waits at the end of each step
REJUDGED_FOLDER = "rejudged"  # the run under other judges: figures and journals of `rewardflow rejudge`
CHECKPOINTS_FOLDER = "checkpoints"
ROLLOUTS_FOLDER = "rollouts"
TENSORBOARD_FOLDER = "tensorboard"
EVALUATIONS_FOLDER = "eval"
WANDB_FILE = "wandb.json"
AGENT_LOCK_FILE = "agent.lock"
TRAINING_LOCK_FILE = "training.lock"

# Of the parquet files in ROLLOUTS_FOLDER: columns may be added within a version; a column that is removed or changes
# its meaning raises it. The key is in each file's metadata.
ROLLOUTS_VERSION = 1
ROLLOUTS_VERSION_KEY = b"rewardflow.rollouts.version"

# A directory may hold these before a run starts in it, because people evaluate a model before they train it; and a
# journal, which may be older than the run directory, with the files beside it: SQLite's, locks, a repaired file's past.
_ALLOWED_BEFORE = frozenset({EVALUATIONS_FOLDER, JOURNAL_FILE})
# The last is the unfinished run.json, the only file that a crash in `create` leaves behind.
_ALLOWED_PREFIXES = (f"{JOURNAL_FILE}-", f"{JOURNAL_FILE}.broken-", f".{RUN_FILE}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """The directory of an existing run."""

    path: Path
    name: str
    started_at: float
    rewardflow_version: str

    @classmethod
    def create(cls, path: str | PathLike[str], *, name: str | None = None) -> RunDirectory:
        """Creates the directory of a new run. Without `name`, the run gets the directory's name."""
        directory = Path(path)
        check_free_for_new_run(directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            run = {
                "schema_version": SCHEMA_VERSION,
                "name": name or directory.resolve().name,
                "started_at": time.time(),
                "rewardflow_version": own_version(),
            }
            write_private(directory / RUN_FILE, encode_line(run))
        except OSError as error:
            raise InvalidInput(f"a run directory must be writable, got {directory}: {error}") from error
        return cls.open(directory)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> RunDirectory:
        """Opens the directory of an existing run."""
        directory = Path(path)
        file = directory / RUN_FILE
        try:
            run = read_json(file.read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidInput(f"a run directory needs a readable {RUN_FILE}, got {file}: {error}") from error
        if not isinstance(run, dict) or not isinstance(run.get("schema_version"), int):
            raise InvalidInput(f"{RUN_FILE} must have a schema_version, got {file}: {run!r:.200}")
        if run["schema_version"] > SCHEMA_VERSION:
            raise InvalidInput(
                f"a run directory must have a schema version of at most {SCHEMA_VERSION}, got {run['schema_version']} "
                f"in {file}: it was written by rewardflow {run.get('rewardflow_version', 'of a later version')}"
            )
        try:
            name, started_at = str(run["name"]), float(run["started_at"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{RUN_FILE} must have a name and a started_at, got {file}: {run!r:.200}") from error
        version = str(run.get("rewardflow_version", "unknown"))
        return cls(path=directory, name=name, started_at=started_at, rewardflow_version=version)

    @classmethod
    def at(cls, path: str | PathLike[str], *, name: str | None = None) -> RunDirectory:
        """Opens the run in this directory, or creates one. An existing run keeps its name."""
        return cls.open(path) if (Path(path) / RUN_FILE).exists() else cls.create(path, name=name)

    @property
    def events_path(self) -> Path:
        return self.path / EVENTS_FILE

    @property
    def steps_path(self) -> Path:
        return self.path / STEPS_FILE

    @property
    def metrics_path(self) -> Path:
        return self.path / METRICS_FILE

    def open_metrics(self) -> LineFile[Mapping[str, Any]]:
        """Opens the file that gets one line for each trained step; close it."""
        return LineFile(self.metrics_path, dict)

    def open_device_events(self) -> EventFile:
        """Opens the file for device events, apart from the agent's events because a file has one writer; close it."""
        return EventFile(self.path / DEVICES_FILE)

    def open_events(self) -> EventFile:
        """Opens the file of events for writing; close it."""
        return EventFile(self.events_path)

    def open_steps(self) -> LineFile[Mapping[str, Any]]:
        """Opens the file for lines of `StepTotals.to_json()`; close it."""
        return LineFile(self.steps_path, dict)


class EventFile:
    """An event sink that writes to a file."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._lines: LineFile[Event] = LineFile(path, to_json)

    @property
    def path(self) -> Path:
        return self._lines.path

    @property
    def failed(self) -> int:
        """The number of events that could not be written."""
        return self._lines.failed

    def emit(self, event: Event) -> None:
        self._lines.append(event)

    def statistics(self) -> LineFileStatistics:
        return self._lines.statistics()

    def close(self) -> None:
        """Writes the waiting events and closes the file. Waits for the disk; closing twice is fine."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


# -- reading --


def read_events(path: str | PathLike[str]) -> Iterator[Event]:
    """Yields the events of a run directory, or of one events.jsonl."""
    file = _file_in(path, EVENTS_FILE)
    for number, data in read_lines(file):
        try:
            event = from_json(data)
        except InvalidInput as error:
            raise InvalidInput(f"{file}, line {number}: {error}") from error
        yield event


def read_steps(path: str | PathLike[str]) -> dict[int, dict[str, dict[str, Any]]]:
    """Returns the totals of every step, by step and source: `read_steps(path)[7]["reward"]["cost_usd"]`."""
    file = _file_in(path, STEPS_FILE)
    steps: dict[int, dict[str, dict[str, Any]]] = {}
    for number, data in read_lines(file):
        version, step, source = data.get("v"), data.get("step"), data.get("source")
        if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
            raise InvalidInput(f"{file}, line {number}: v must be 1 to {SCHEMA_VERSION}, got {version!r}")
        if not isinstance(step, int) or not isinstance(source, str):
            raise InvalidInput(f"{file}, line {number}: a step and a source are needed, got {step!r} and {source!r}")
        steps.setdefault(step, {})[source] = data
    return dict(sorted(steps.items()))


def _file_in(path: str | PathLike[str], name: str) -> Path:
    place = Path(path)
    if not place.exists():
        raise InvalidInput(f"a run directory or its {name} must exist, got {place}")
    return place / name if place.is_dir() else place


# -- run.json --


def check_free_for_new_run(directory: Path) -> None:
    """Raises `InvalidInput` if the path holds something that a new run must not share its directory with."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise InvalidInput(f"a run directory must be a directory, got the file {directory}")
    if (directory / RUN_FILE).exists():
        raise InvalidInput(f"a new run needs a directory of its own, got {directory}, which already holds one; open it")
    names = sorted(entry.name for entry in directory.iterdir())
    others = [name for name in names if name not in _ALLOWED_BEFORE and not name.startswith(_ALLOWED_PREFIXES)]
    if others:
        raise InvalidInput(
            f"a new run needs a directory that is empty but for a {JOURNAL_FILE} and {EVALUATIONS_FOLDER}, "
            f"got {directory} without a {RUN_FILE} but with {', '.join(others[:5])}"
        )


def own_version() -> str:
    try:
        return importlib.metadata.version("rewardflow")
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return "unknown"
